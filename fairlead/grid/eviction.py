"""Who has to go when a tenant needs room: GreedyDual-Size-Frequency, within that tenant alone. Pure.

A block is worth ``inflation + uses * cost / size`` (Cherkasova 1998): what is dear to rebuild, often used or
small stays. The inflation rises to the worth of whatever went last, so that what was dear long ago
does not stay for ever. The state of a training goes after all else, whatever that is worth: it is a job's progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_READ_BYTES_PER_S = 1e9
_AT_LEAST_S = 1e-3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A block as the rule sees it."""

    id: str
    nbytes: int
    cost_s: float  # to make it again; 0: nobody knows, as long as to read it from a disk
    uses: int
    floor: float  # the inflation when it was used last
    pinned: bool = False
    rank: int = 0  # all of a lower one go first


def worth(block: Candidate) -> float:
    """Higher stays longer."""
    cost_s = max(block.cost_s, _AT_LEAST_S + block.nbytes / _READ_BYTES_PER_S)
    return block.floor + max(1, block.uses) * cost_s / max(1, block.nbytes)


def retention(block: Candidate) -> tuple[int, float]:
    """Rank, then worth: higher stays longer."""
    return block.rank, worth(block)


def order(blocks: Iterable[Candidate]) -> list[Candidate]:
    """Those that may go, the least worth first; never one that is in use."""
    return sorted((block for block in blocks if not block.pinned), key=lambda block: (retention(block), block.id))


def shared_bytes(nbytes: Mapping[str, int], users: Mapping[str, frozenset[str]]) -> dict[str, int]:
    """Bytes by job: a block that several jobs use is counted to each of them in equal parts, to none when unused."""
    sums: dict[str, float] = {}
    for block in sorted(users):
        for job in users[block]:
            sums[job] = sums.get(job, 0.0) + nbytes.get(block, 0) / len(users[block])
    return {job: round(total) for job, total in sorted(sums.items())}
