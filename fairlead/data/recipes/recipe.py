"""A recipe as it is declared: steps in their order, in Python or YAML alike, and what cannot be a recipe is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from fairlead.data.recipes.anomalies import Flag
from fairlead.data.recipes.array_json import content_hash
from fairlead.data.recipes.categories import Encode
from fairlead.data.recipes.column_assembly import Assemble, Select
from fairlead.data.recipes.images import Image
from fairlead.data.recipes.lengths import Pad
from fairlead.data.recipes.numbers import Impute, Normalise
from fairlead.data.recipes.step import Step
from fairlead.data.recipes.texts import Tokenise
from fairlead.errors import InvalidSpec
from fairlead.spec_errors import invalid

if TYPE_CHECKING:
    from fairlead.data.recipes.fitted import FittedRecipe
    from fairlead.data.spool import BatchSource
    from fairlead.data.train_test_split import Part

VERSION = 1
STEPS: Mapping[str, type[Step]] = {
    kind.name: kind for kind in (Normalise, Impute, Encode, Tokenise, Image, Pad, Flag, Assemble, Select)
}


@dataclass(frozen=True, slots=True, init=False)
class Recipe:
    """Steps in their order. ``target`` is what is to be predicted: only a step that names it may touch it."""

    steps: tuple[Step, ...]
    target: str | None
    version: int

    def __init__(
        self, steps: Iterable[Step | Mapping[str, Any]], target: str | None = None, version: int = VERSION
    ) -> None:
        if version != VERSION:
            raise InvalidSpec(f"{version!r} is not a version of recipes that is known here", field="version",
                              value=version, fix=f"write version: {VERSION}")  # fmt: skip
        read = tuple(each if isinstance(each, Step) else _step(each, place) for place, each in enumerate(steps))
        object.__setattr__(self, "steps", read)
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "version", version)

    @classmethod
    def from_dict(cls, document: Any, source: str = "recipe") -> Recipe:
        """A recipe as YAML or JSON has it."""
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
        """The recipe with every default left out, as it would be written by hand."""
        steps = [{each.name: each.model_dump(mode="json", exclude_defaults=True, by_alias=True)} for each in self.steps]
        return {"version": self.version, "steps": steps} | ({"target": self.target} if self.target else {})

    def to_yaml(self) -> str:
        return str(yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True))

    @property
    def hash(self) -> str:
        """The name of what is declared, before anything was learned."""
        return content_hash(self.to_dict())

    def fit(self, source: BatchSource, *, part: Part | None = None, sample: float | None = None, seed: int = 0,
            workers: int | None = None) -> FittedRecipe:  # fmt: skip
        """Learn from the training part: from all of the source, from a part of it, or from a sample of either."""
        from fairlead.data.recipes.fitting import fit

        return fit(self, source, part=part, sample=sample, seed=seed, workers=workers)


def _step(written: Any, place: int) -> Step:
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
        raise InvalidSpec(f"has {len(written)} names", field=where, fix="write each as an item: - name: ...")
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
