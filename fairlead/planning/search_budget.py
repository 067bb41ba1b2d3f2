"""How much a search may look at: a bound that is the same on every machine, however a model was described."""

from __future__ import annotations

from dataclasses import dataclass

CANDIDATES = 1500
"""Plans worked out for one gang; honest models need 20 to 300."""

CURVE_CANDIDATES = 4000
"""For all gangs of one speed curve together."""

SHAPES = 20_000
"""Of plans that are listed at all, before the fastest of them are looked at."""


@dataclass(slots=True)
class Budget:
    """Counts the candidates that searches look at, until there are as many as there may be."""

    most: int = CANDIDATES
    looked_at: int = 0
    exhausted: bool = False  # there was more to look at

    def take(self) -> bool:
        """Whether one more may be looked at."""
        if self.looked_at >= self.most:
            self.exhausted = True
            return False
        self.looked_at += 1
        return True

    def annotated(self, reason: str) -> str:
        """The reason for a choice, with a word on what was left out."""
        return f"{reason} (of the {self.looked_at} likeliest plans; there are more)" if self.exhausted else reason
