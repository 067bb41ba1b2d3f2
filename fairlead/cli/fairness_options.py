"""Options of ``fairlead up`` for long-term fairness between tenants."""

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
    typer.Option("--fairness", help="Compensate tenants faster below this fairness index: 0.9; 0: never."),
]
HalfLife = Annotated[
    str | None,
    typer.Option("--half-life", help="Half-life of past usage and of owed shares: 12h."),
]


@dataclass(frozen=True, slots=True)
class FairnessOptions:
    """The fairness options, validated before anything starts."""

    fairness: str | None = None
    half_life: str | None = None

    def sharing(self) -> Sharing:
        """Settings for the policy; None keeps the setting of the last start."""
        from fairlead.scheduling.state import Sharing

        return Sharing(self._index(), self._half_life_s())

    def arguments(self) -> list[str]:
        """The same options as arguments of the background process."""
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
            raise InvalidSpec(
                f"{self.fairness!r} is not a fairness index", field="--fairness", value=self.fairness, fix=fix
            )
        return index

    def _half_life_s(self) -> float | None:
        if self.half_life is None:
            return None
        if not is_duration(self.half_life) or parse_duration(self.half_life) <= 0:
            fix = "write it like 90m, 12h or 2d"
            raise InvalidSpec(
                f"{self.half_life!r} is not a duration", field="--half-life", value=self.half_life, fix=fix
            )
        return float(parse_duration(self.half_life))
