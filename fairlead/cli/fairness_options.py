"""How ``fairlead up`` is told about fairness over time: when it is corrected, and how long use is remembered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.errors import InvalidSpec
from fairlead.units import is_duration, parse_duration

if TYPE_CHECKING:
    from fairlead.scheduling.state import Sharing

Fairness = Annotated[
    str | None,
    typer.Option("--fairness", help="Below this index between tenants, what is owed is repaid sooner: 0.9; 0: never."),
]
HalfLife = Annotated[
    str | None,
    typer.Option("--half-life", help="After so long, what a tenant used and is owed counts half: 12h."),
]


@dataclass(frozen=True, slots=True)
class FairnessOptions:
    """What was asked for, checked before anything is started."""

    fairness: str | None = None
    half_life: str | None = None

    def sharing(self) -> Sharing:
        """As the policy reads it; None where nothing was said: as the last time."""
        from fairlead.scheduling.state import Sharing

        return Sharing(self._index(), self._half_life_s())

    def arguments(self) -> list[str]:
        """The same again, for the process that runs behind."""
        given = {"--fairness": self.fairness, "--half-life": self.half_life}
        return [word for option, value in given.items() if value for word in (option, value)]

    def _index(self) -> float | None:
        if self.fairness is None:
            return None
        try:
            index = float(self.fairness)
        except ValueError:
            index = -1.0
        if not 0.0 <= index < 1.0:
            fix = "write a number from 0 (never) to less than 1, like 0.9"
            raise InvalidSpec(f"{self.fairness!r} is no such index", field="--fairness", value=self.fairness, fix=fix)
        return index

    def _half_life_s(self) -> float | None:
        if self.half_life is None:
            return None
        if not is_duration(self.half_life) or parse_duration(self.half_life) <= 0:
            fix = "write it like 90m, 12h or 2d"
            raise InvalidSpec(f"{self.half_life!r} is not a time", field="--half-life", value=self.half_life, fix=fix)
        return float(parse_duration(self.half_life))
