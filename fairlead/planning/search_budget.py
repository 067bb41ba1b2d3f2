"""Bounds the number of plans that a search evaluates, equally on every machine and for any model."""

from __future__ import annotations

from dataclasses import dataclass

CANDIDATES = 1500
"""Plans evaluated for one gang; ordinary models need 20 to 300."""

CURVE_CANDIDATES = 4000
"""For all gangs of one speed curve together."""

SHAPES = 20_000
"""Shapes listed before the most promising ones are evaluated."""


@dataclass(slots=True)
class Budget:
    """Counts evaluated candidates up to a limit."""

    most: int = CANDIDATES
    looked_at: int = 0
    exhausted: bool = False  # a candidate was refused

    def take(self) -> bool:
        """True if one more candidate may be evaluated."""
        if self.looked_at >= self.most:
            self.exhausted = True
            return False
        self.looked_at += 1
        return True

    def annotated(self, reason: str) -> str:
        """The reason for a choice, with a note if candidates were left out."""
        return f"{reason} (of the {self.looked_at} likeliest plans; there are more)" if self.exhausted else reason
