"""Order of eviction when a tenant needs room: GreedyDual-Size-Frequency within that tenant. Pure.

A block is worth ``inflation + uses * cost / size`` (Cherkasova 1998): blocks that are costly to rebuild, often used
or small stay. The inflation rises to the worth of the last victim, so that a block that was valuable long ago does
not stay for ever. Snapshots of trainings go after all other blocks, whatever those are worth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_READ_BYTES_PER_S = 1e9
_AT_LEAST_S = 1e-3


@dataclass(frozen=True, slots=True)
class Candidate:
    """The facts of a block that decide its eviction."""

    id: str
    nbytes: int
    cost_s: float  # to rebuild it; 0: unknown, estimated as the time to read it from disk
    uses: int
    floor: float  # the inflation at its last use
    pinned: bool = False
    rank: int = 0  # blocks of a lower rank go first


def worth(block: Candidate) -> float:
    """The block's GreedyDual value: a higher one stays longer."""
    cost_s = max(block.cost_s, _AT_LEAST_S + block.nbytes / _READ_BYTES_PER_S)
    return block.floor + max(1, block.uses) * cost_s / max(1, block.nbytes)


def retention(block: Candidate) -> tuple[int, float]:
    """Sort key of eviction, rank before worth: a higher one stays longer."""
    return block.rank, worth(block)


def order(blocks: Iterable[Candidate]) -> list[Candidate]:
    """The blocks without pins, least valuable first."""
    return sorted((block for block in blocks if not block.pinned), key=lambda block: (retention(block), block.id))


def shared_bytes(nbytes: Mapping[str, int], users: Mapping[str, frozenset[str]]) -> dict[str, int]:
    """Bytes by job: a block is split equally among the jobs that use it; unused blocks count for none."""
    sums: dict[str, float] = {}
    for block in sorted(users):
        for job in users[block]:
            sums[job] = sums.get(job, 0.0) + nbytes.get(block, 0) / len(users[block])
    return {job: round(total) for job, total in sorted(sums.items())}
