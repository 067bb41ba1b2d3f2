"""A recipe, declared in Python or YAML as ordered steps, and the fitted recipe that replays them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import pyarrow as pa
import yaml
from pydantic import ValidationError

from fairlead.data.errors import BadData
from fairlead.data.recipes.anomalies import Flag
from fairlead.data.recipes.array_json import arrays_from_json, arrays_to_json, canonical_json, content_hash
from fairlead.data.recipes.batch_columns import Array, Frame, column_kinds
from fairlead.data.recipes.categories import Encode
from fairlead.data.recipes.column_assembly import Assemble, Select
from fairlead.data.recipes.fitting import learn
from fairlead.data.recipes.images import Image
from fairlead.data.recipes.lengths import Pad
from fairlead.data.recipes.numbers import Impute, Normalise
from fairlead.data.recipes.outputs import Output
from fairlead.data.recipes.step import State, Step
from fairlead.data.recipes.texts import Tokenise
from fairlead.data.spool import BatchSource
from fairlead.data.train_test_split import Part
from fairlead.errors import InvalidSpec
from fairlead.spec_errors import invalid

FORMAT = "fairlead/fitted-recipe/1"
VERSION = 1
STEPS: Mapping[str, type[Step]] = {
    kind.name: kind for kind in (Normalise, Impute, Encode, Tokenise, Image, Pad, Flag, Assemble, Select)
}


@dataclass(frozen=True, slots=True, init=False)
class Recipe:
    """Ordered steps. ``target`` is the column to predict: only a step that names it changes it."""

    steps: tuple[Step, ...]
    target: str | None
    version: int

    def __init__(
        self, steps: Iterable[Step | Mapping[str, Any]], target: str | None = None, version: int = VERSION
    ) -> None:
        if version != VERSION:
            raise InvalidSpec(f"{version!r} is not a known recipe version", field="version",
                              value=version, fix=f"write version: {VERSION}")  # fmt: skip
        read = tuple(each if isinstance(each, Step) else _parse_step(each, place) for place, each in enumerate(steps))
        object.__setattr__(self, "steps", read)
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "version", version)

    @classmethod
    def from_dict(cls, document: Any, source: str = "recipe") -> Recipe:
        """Read a recipe from a parsed YAML or JSON document."""
        if isinstance(document, list):
            document = {"steps": document}
        if not isinstance(document, dict) or not isinstance(document.get("steps"), list):
            raise InvalidSpec("is not a recipe", field=source, fix="write steps: with a list of steps")
        strange = sorted(str(key) for key in set(document) - {"steps", "target", "version"})
        if strange:
            raise InvalidSpec("unknown field", field=f"{source}: {strange[0]}", fix="use steps, target and version")
        target = document.get("target")
        if target is not None and not isinstance(target, str):
            raise InvalidSpec("is not the name of a column", field=f"{source}: target", fix="write one name")
        return cls(document["steps"], target, document.get("version", VERSION))

    @classmethod
    def from_yaml(cls, text: str, source: str = "recipe") -> Recipe:
        try:
            return cls.from_dict(yaml.safe_load(text), source)
        except yaml.YAMLError as error:
            problem = getattr(error, "problem", None) or "cannot be read"
            raise InvalidSpec(f"is not YAML: {problem}", field=source, fix="check its indentation and quotes") from None

    def to_dict(self) -> dict[str, Any]:
        """The recipe as a document without defaults, as one would write it by hand."""
        steps = [{each.name: each.model_dump(mode="json", exclude_defaults=True, by_alias=True)} for each in self.steps]
        return {"version": self.version, "steps": steps} | ({"target": self.target} if self.target else {})

    def to_yaml(self) -> str:
        return str(yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True))

    @property
    def hash(self) -> str:
        """Hash of the declaration, before fitting."""
        return content_hash(self.to_dict())

    def fit(self, source: BatchSource, *, part: Part | None = None, sample: float | None = None, seed: int = 0,
            workers: int | None = None) -> FittedRecipe:  # fmt: skip
        """Fit the recipe on all of the source, on a part of it, or on a sample of either."""
        learned = learn(self.steps, self.target, source, part=part, sample=sample, seed=seed, workers=workers)
        return FittedRecipe(self, learned.states, learned.inputs, learned.outputs, learned.rows)


@dataclass(frozen=True, eq=False)
class FittedRecipe:
    """Steps with their learned state. Equal hashes mean equal results on equal data."""

    recipe: Recipe
    states: tuple[State, ...]
    inputs: dict[str, str]  # column -> its Arrow type in the training part
    outputs: tuple[Output, ...]
    rows: int = 0  # rows of the training part
    _checked_schemas: list[pa.Schema] = field(default_factory=list, repr=False)  # the schemas that passed `check` last

    # ------------------------------------------------------------ replay

    def replay(self, batch: pa.RecordBatch, places: Array | None = None) -> Frame:
        """Run the batch through all steps; ``places`` are the numbers of its rows in the source."""
        frame = self._input_frame(batch, places)
        for step, state in zip(self.recipe.steps, self.states, strict=True):
            step.apply(state, frame)
        return frame

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Prepare a batch for a model. Its target may be missing, no other column."""
        return self.replay(batch).batch()

    def _input_frame(self, batch: pa.RecordBatch, places: Array | None) -> Frame:
        self.check(batch.schema)
        frame = Frame.from_batch(
            batch.select([name for name in self.inputs if name in batch.schema.names]), places=places
        )
        for name, column in frame.columns.items():
            if isinstance(column, pa.Array) and pa.types.is_null(column.type):  # a batch without any value
                kind = {"text": pa.string(), "number": pa.float64()}.get(self._kinds[name], pa.null())
                frame.columns[name] = column.cast(kind)
        return frame

    def check(self, schema: pa.Schema) -> None:
        """Refuse data of another schema; the error names the columns."""
        if any(schema.equals(each) for each in self._checked_schemas):
            return
        missing = [name for name in self.inputs if name not in schema.names and name != self.recipe.target]
        if missing:
            fix = "give every column that the recipe was fitted on; only the target may be missing"
            raise BadData("the data", f"lacks the columns {', '.join(map(repr, missing))}", fix=fix)
        now = column_kinds(Frame.from_batch(pa.RecordBatch.from_pylist([], schema)), schema.names)
        for name, kind in self._kinds.items():
            if name in now and now[name] != kind and schema.field(name).type != pa.null():
                what = f"is {schema.field(name).type}, but was {self.inputs[name]}"
                fix = "read it with the type that the recipe was fitted on, or fit the recipe again"
                raise BadData("the data", what, column=name, fix=fix)
        self._checked_schemas[:] = [schema, *self._checked_schemas[:3]]

    @cached_property
    def _kinds(self) -> dict[str, str]:
        return {name: _kind(arrow_type) for name, arrow_type in self.inputs.items()}

    # ------------------------------------------------------------ description

    @property
    def features(self) -> tuple[Output, ...]:
        """The input columns of a model."""
        return tuple(each for each in self.outputs if each.name != self.recipe.target)

    @property
    def target(self) -> Output | None:
        """The column that a model predicts."""
        return next((each for each in self.outputs if each.name == self.recipe.target), None)

    @property
    def flagged(self) -> dict[int, float]:
        """Flagged rows of the training sample, with scores; a data set lists all flagged rows of its own."""
        found: dict[int, float] = {}
        for step, state in zip(self.recipe.steps, self.states, strict=True):
            if isinstance(step, Flag):
                found |= {int(row): float(score) for row, score in state["flagged"].items()}
        return found

    # ------------------------------------------------------------ serialisation

    @cached_property
    def _document(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "recipe": self.recipe.to_dict(),
            "inputs": self.inputs,
            "states": arrays_to_json(list(self.states)),
            "outputs": [{"name": each.name, "dtype": each.dtype, "shape": list(each.shape), "labels": list(each.labels)}
                        for each in self.outputs],
            "rows": self.rows,
        }  # fmt: skip

    @cached_property
    def hash(self) -> str:
        """Hash of steps and learned state."""
        return content_hash(self._document)

    def to_json(self) -> str:
        return canonical_json(self._document)

    @classmethod
    def from_json(cls, text: str | bytes, *, expect: str | None = None) -> FittedRecipe:
        """Read a fitted recipe; with ``expect``, refuse one of another hash."""
        try:
            written = json.loads(text)
            fitted = cls._from_document(written)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidSpec(f"is not a fitted recipe: {error}", field="recipe", fix="fit it again") from None
        if expect is not None and fitted.hash != expect:
            raise InvalidSpec(f"has the hash {fitted.hash[:12]}, not {expect[:12]}: it was modified", field="recipe",
                              fix="use the recipe stored with the model")  # fmt: skip
        return fitted

    @classmethod
    def _from_document(cls, written: dict[str, Any]) -> FittedRecipe:
        if written["format"] != FORMAT:
            raise ValueError(f"its format is {written['format']!r}")
        recipe = Recipe.from_dict(written["recipe"])
        states = tuple(arrays_from_json(written["states"]))
        if len(states) != len(recipe.steps):
            raise ValueError("it lacks steps")
        outputs = tuple(Output(each["name"], each["dtype"], tuple(each["shape"]), tuple(each["labels"]))
                        for each in written["outputs"])  # fmt: skip
        return cls(recipe, states, dict(written["inputs"]), outputs, int(written["rows"]))


def _parse_step(written: Any, place: int) -> Step:
    where = f"steps[{place}]"
    if isinstance(written, str):
        written = {written: {}}
    if not isinstance(written, Mapping) or not written:
        raise InvalidSpec("is not a step", field=where, fix="write it like normalise: {columns: numeric}")
    if "step" in written:
        name, settings = written["step"], {key: value for key, value in written.items() if key != "step"}
    elif len(written) == 1:
        name, settings = next(iter(written.items()))
    else:
        raise InvalidSpec(f"has {len(written)} names", field=where, fix="write each step as an item: - name: ...")
    kind = STEPS.get(str(name))
    if kind is None:
        close = get_close_matches(str(name), STEPS, n=1)
        guess = f"did you mean {close[0]}? " if close else ""
        raise InvalidSpec("there is no such step", field=f"{where}: {name}", value=str(name),
                          fix=f"{guess}there are: {', '.join(STEPS)}")  # fmt: skip
    if settings is not None and not isinstance(settings, Mapping):
        raise InvalidSpec("is not a mapping of settings", field=f"{where}: {name}", fix="write {columns: ...}")
    try:
        return kind.model_validate(dict(settings or {}))
    except ValidationError as error:
        raise invalid(error, kind, f"{where}: {name}") from None


def _kind(arrow_type: str) -> str:
    """The kind of a column (number, numbers, text, ...), from the name of its Arrow type."""
    is_dictionary = arrow_type.startswith("dictionary")
    inner = arrow_type.removeprefix("dictionary<values=").split(",")[0] if is_dictionary else arrow_type
    if inner.startswith(("int", "uint", "float", "double", "halffloat", "bool", "decimal")):
        return "number"
    if inner in ("string", "large_string"):
        return "text"
    return "numbers" if inner.startswith("fixed_size_list") else inner
