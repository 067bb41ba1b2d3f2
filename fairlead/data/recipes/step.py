"""The base of recipe steps: declared, optionally fitted on a stream, and replayed on any batch."""

from __future__ import annotations

from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fairlead.data.recipes.batch_columns import Frame, column_kinds
from fairlead.errors import InvalidSpec

State = dict[str, Any]
"""The learned state of a step, as JSON values and arrays; ``columns`` are the resolved names."""


class Learner(Protocol):
    """Learns from batches: ``summarise`` may run for several batches at once, ``add`` is called in their order."""

    def summarise(self, frame: Frame) -> Any: ...

    def add(self, seen: Any) -> None: ...

    def state(self) -> State: ...


class Step(BaseModel):
    """Columns are names, patterns such as ``*_rate``, or ``numeric``, ``text``, ``*``; these never mean the target."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    name: ClassVar[str]

    columns: tuple[str, ...] = ("numeric",)
    leave: tuple[str, ...] = Field(default=(), alias="except")

    @field_validator("columns", "leave", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @property
    def changes_columns(self) -> bool:
        """True if patterns such as ``numeric`` match other columns after this step."""
        return False

    @property
    def drops_rows(self) -> bool:
        """True if the step removes rows."""
        return False

    @property
    def uses_patterns(self) -> bool:
        """True if the columns are chosen by a pattern rather than by name."""
        return any(each in ("numeric", "text", "*") or "*" in each for each in self.columns)

    def resolve(self, frame: Frame, target: str | None) -> list[str]:
        """The chosen columns; refuses names that do not exist."""
        names = list(frame.columns)
        kind = column_kinds(frame, names)
        chosen: dict[str, None] = {}
        for each in self.columns:
            chosen |= dict.fromkeys(_matching_columns(each, names, kind, target, self.name))
        return [name for name in chosen if not any(fnmatchcase(name, each) for each in self.leave)]

    def learner(self, columns: list[str], frame: Frame) -> Learner | None:
        """The learner of this step; None if there is nothing to learn."""
        return None

    def apply(self, state: State, frame: Frame) -> None:
        """Replay the step on a batch."""
        raise NotImplementedError

    def present_columns(self, state: State, frame: Frame) -> list[tuple[int, str]]:
        """Indices and names of the state's columns that the frame has. A served model gets no target."""
        return [(place, name) for place, name in enumerate(state["columns"]) if name in frame.columns]


def _matching_columns(each: str, names: list[str], kind: dict[str, str], target: str | None, step: str) -> list[str]:
    open_to_all = [name for name in names if name != target]
    if each == "*":
        return open_to_all
    if each in ("numeric", "text"):
        wanted = "number" if each == "numeric" else "text"
        found = [name for name in open_to_all if kind[name] == wanted]
        return found or [name for name in open_to_all if name == each]  # a column may be called so
    if "*" in each:
        return [name for name in open_to_all if fnmatchcase(name, each)]
    if each not in kind:
        close = get_close_matches(each, names, n=1)
        guess = f"did you mean {close[0]}? " if close else ""
        there = ", ".join(names[:20]) + (" ..." if len(names) > 20 else "")
        raise InvalidSpec("there is no such column", field=f"{step}.columns: {each}", fix=f"{guess}there are: {there}")
    return [each]
