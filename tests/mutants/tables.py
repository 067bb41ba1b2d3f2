"""The table of a run: per room what was drawn, what matters, what was killed, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tests.mutants.judge import KILLED, SURVIVED, UNDECIDED

Z = 1.96


def wilson(killed: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    if of == 0:
        return 0.0, 1.0
    share = killed / of
    middle = (share + Z * Z / (2 * of)) / (1 + Z * Z / of)
    half = Z / (1 + Z * Z / of) * math.sqrt(share * (1 - share) / of + Z * Z / (4 * of * of))
    return max(0.0, middle - half), min(1.0, middle + half)


def table(rooms: Sequence[str], results: Iterable[tuple[str, str]]) -> str:
    """`results`: (room, verdict) of each mutant. Equivalent ones and undecided ones are shown and do not count."""
    told = list(results)
    lines = [f"{'room':<12}{'drawn':>6}{'equivalent':>11}{'undecided':>10}{'matter':>7}{'killed':>7}{'%':>5}   95 %"]
    for name in (*rooms, "all"):
        mine = [verdict for room, verdict in told if name in (room, "all")]
        if not mine:
            continue
        killed, matter = mine.count(KILLED), mine.count(KILLED) + mine.count(SURVIVED)
        low, high = wilson(killed, matter)
        undecided = mine.count(UNDECIDED)
        share = f"{100 * killed / matter:.0f}" if matter else "-"
        lines.append(
            f"{name:<12}{len(mine):>6}{len(mine) - matter - undecided:>11}{undecided:>10}{matter:>7}{killed:>7}"
            f"{share:>5}   {100 * low:.0f}-{100 * high:.0f}"
        )
    return "\n".join(lines)
