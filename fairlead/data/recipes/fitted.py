"""A fitted recipe: what was declared and what was learned, as one JSON document that replays it anywhere."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from fairlead.data.errors import BadData
from fairlead.data.recipes.anomalies import Flag
from fairlead.data.recipes.array_json import canonical, content_hash, packed, unpacked
from fairlead.data.recipes.batch_columns import Array, Frame, is_numeric, kinds
from fairlead.data.recipes.categories import Encode, labels
from fairlead.data.recipes.column_assembly import Assemble, Select
from fairlead.data.recipes.recipe import Recipe
from fairlead.data.recipes.step import State
from fairlead.errors import InvalidSpec

FORMAT = "fairlead/fitted-recipe/1"


@dataclass(frozen=True, slots=True)
class Output:
    """A column that comes out: the shape and type of a row, and what its numbers stand for where that is known."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class FittedRecipe:
    """Steps with what they have learned. Two with the same hash do the same to the same data."""

    recipe: Recipe
    states: tuple[State, ...]
    inputs: dict[str, str]  # column -> its Arrow type in the training part
    outputs: tuple[Output, ...]
    rows: int = 0  # that were learned from
    _fits: list[pa.Schema] = field(default_factory=list, repr=False)  # schemas that were looked at already

    # ------------------------------------------------------------ replay

    def run(self, batch: pa.RecordBatch, places: Array | None = None) -> Frame:
        """The batch through all steps; ``places`` are the numbers of its rows in the source."""
        frame = self._taken(batch, places)
        for step, state in zip(self.recipe.steps, self.states, strict=True):
            step.apply(state, frame)
        return frame

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch as a model takes it. Its target may be missing; no other column may."""
        return self.run(batch).batch()

    def _taken(self, batch: pa.RecordBatch, places: Array | None) -> Frame:
        self.check(batch.schema)
        frame = Frame.of(batch.select([name for name in self.inputs if name in batch.schema.names]), places=places)
        for name, column in frame.columns.items():
            if isinstance(column, pa.Array) and pa.types.is_null(column.type):  # a batch in which nothing is known
                kind = {"text": pa.string(), "number": pa.float64()}.get(self._kinds[name], pa.null())
                frame.columns[name] = column.cast(kind)
        return frame

    def check(self, schema: pa.Schema) -> None:
        """Refuse data of another schema, and say which columns."""
        if any(schema.equals(each) for each in self._fits):
            return
        missing = [name for name in self.inputs if name not in schema.names and name != self.recipe.target]
        if missing:
            fix = "give every column that the recipe was fitted on; only the target may be missing"
            raise BadData("the data", f"lacks the columns {', '.join(map(repr, missing))}", fix=fix)
        now = kinds(Frame.of(pa.RecordBatch.from_pylist([], schema)), schema.names)
        for name, kind in self._kinds.items():
            if name in now and now[name] != kind and schema.field(name).type != pa.null():
                what = f"is {schema.field(name).type}, but was {self.inputs[name]}"
                fix = "read it with the type that the recipe was fitted on, or fit the recipe again"
                raise BadData("the data", what, column=name, fix=fix)
        self._fits[:] = [schema, *self._fits[:3]]

    @cached_property
    def _kinds(self) -> dict[str, str]:
        return {name: _kind(said) for name, said in self.inputs.items()}

    # ------------------------------------------------------------ what it says of itself

    @property
    def features(self) -> tuple[Output, ...]:
        """The columns that a model takes."""
        return tuple(each for each in self.outputs if each.name != self.recipe.target)

    @property
    def target(self) -> Output | None:
        """The column that a model predicts."""
        return next((each for each in self.outputs if each.name == self.recipe.target), None)

    @property
    def flagged(self) -> dict[int, float]:
        """Rows of the training part's sample that were flagged, with their scores; a data set keeps all of its own."""
        found: dict[int, float] = {}
        for step, state in zip(self.recipe.steps, self.states, strict=True):
            if isinstance(step, Flag):
                found |= {int(row): float(score) for row, score in state["flagged"].items()}
        return found

    # ------------------------------------------------------------ as a document

    @cached_property
    def _written(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "recipe": self.recipe.to_dict(),
            "inputs": self.inputs,
            "states": packed(list(self.states)),
            "outputs": [{"name": each.name, "dtype": each.dtype, "shape": list(each.shape), "labels": list(each.labels)}
                        for each in self.outputs],
            "rows": self.rows,
        }  # fmt: skip

    @cached_property
    def hash(self) -> str:
        """The name of this content."""
        return content_hash(self._written)

    def to_json(self) -> str:
        return canonical(self._written)

    @classmethod
    def from_json(cls, text: str | bytes, *, expect: str | None = None) -> FittedRecipe:
        """Read it back; with ``expect`` it must have that hash."""
        try:
            written = json.loads(text)
            fitted = cls._read(written)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidSpec(f"is not a fitted recipe: {error}", field="recipe", fix="fit it again") from None
        if expect is not None and fitted.hash != expect:
            raise InvalidSpec(f"has the hash {fitted.hash[:12]}, not {expect[:12]}: it was changed", field="recipe",
                              fix="take it from where the model came from")  # fmt: skip
        return fitted

    @classmethod
    def _read(cls, written: dict[str, Any]) -> FittedRecipe:
        if written["format"] != FORMAT:
            raise ValueError(f"its format is {written['format']!r}")
        recipe = Recipe.from_dict(written["recipe"])
        states = tuple(unpacked(written["states"]))
        if len(states) != len(recipe.steps):
            raise ValueError("it lacks steps")
        outputs = tuple(Output(each["name"], each["dtype"], tuple(each["shape"]), tuple(each["labels"]))
                        for each in written["outputs"])  # fmt: skip
        return cls(recipe, states, dict(written["inputs"]), outputs, int(written["rows"]))


def describe(recipe: Recipe, states: tuple[State, ...], frame: Frame) -> tuple[Output, ...]:
    """What comes out, from a batch that went through; one-hot columns and matrices say what they are made of."""
    parts: dict[str, list[str]] = {}
    for step, state in zip(recipe.steps, states, strict=True):
        if isinstance(step, Encode) and step.how == "onehot":
            for place, name in enumerate(state["columns"]):
                parts[name] = [f"{name}={label}" for label in labels(step, state, place)]
        elif isinstance(step, Encode) and step.how == "ordinal":
            for place, name in enumerate(state["columns"]):
                if name == recipe.target:
                    parts[name] = [str(value) for value in state["known"][place]]
        elif isinstance(step, Assemble):
            parts[step.into] = [part for name in state["columns"] for part in parts.get(name, [name])]
        elif isinstance(step, Select):
            parts = {name: each for name, each in parts.items() if name in state["columns"]}
    found = []
    for name, column in frame.columns.items():
        shape = () if isinstance(column, pa.Array) else tuple(int(size) for size in column.shape[1:])
        size = int(np.prod(shape)) if shape else 1
        named = parts.get(name, [])
        fits = len(named) == size or name == recipe.target
        found.append(Output(name, _dtype(column), shape, tuple(named) if fits else ()))
    return tuple(found)


def _dtype(column: Any) -> str:
    """As NumPy writes it where it is numbers, as Arrow does otherwise."""
    if not isinstance(column, pa.Array):
        return str(column.dtype)
    if pa.types.is_boolean(column.type):
        return "uint8"
    if pa.types.is_decimal(column.type):
        return "float64"
    return str(np.dtype(column.type.to_pandas_dtype())) if is_numeric(column.type) else str(column.type)


def _kind(said: str) -> str:
    """What a type was in a word, from how Arrow writes it."""
    inner = said.removeprefix("dictionary<values=").split(",")[0] if said.startswith("dictionary") else said
    if inner.startswith(("int", "uint", "float", "double", "halffloat", "bool", "decimal")):
        return "number"
    if inner in ("string", "large_string"):
        return "text"
    return "numbers" if inner.startswith("fixed_size_list") else inner
