"""The gang at the head that fits nowhere yet: where it will fit first, and the room that is kept for it until then."""

from __future__ import annotations

import math

import numpy as np

from fairlead.scheduling.market.capacity_arrays import Bools
from fairlead.scheduling.market.occupancy import KeptRoom, Occupancy, SeatRequest
from fairlead.scheduling.market.tree import best_seats, runs

LOOKED_AT = 16
"""Domains that are looked at, those that lack least first."""


def reserved(floor: Occupancy, wish: SeatRequest) -> KeptRoom | None:
    """The soonest that it fits as those who run end one by one, or None if their ends do not help it."""
    best: KeptRoom | None = None
    for _, last, pace in runs(wish, len(floor.ground.domains)):
        if pace <= 0:
            continue
        domain = floor.ground.domains[last]
        whole = np.bincount(domain, floor.ground.holds(wish.need, wish.only))
        lacks = wish.size - np.bincount(domain, floor.fit(wish))
        for number in np.argsort(np.where(whole >= wish.size, lacks, np.inf), kind="stable")[:LOOKED_AT].tolist():
            if whole[number] < wish.size:
                break
            found = _soonest(floor, wish, domain == number)
            if found is not None and (best is None or found.in_s < best.in_s):
                best = found
    return best


def _soonest(floor: Occupancy, wish: SeatRequest, inside: Bools) -> KeptRoom | None:
    """When enough gangs of this domain are expected to have ended, on paper only."""
    mark, in_s = floor.mark(), 0.0
    there = {job for node in np.nonzero(inside)[0].tolist() for job in floor.on[node]}
    try:
        for job in sorted(there, key=lambda job: (floor.wishes[job].ends_s, job)):
            in_s = floor.wishes[job].ends_s
            if not math.isfinite(in_s):
                return None
            floor.leave(job)
            seats = best_seats(floor, wish, inside)
            if seats is not None:
                surplus = np.where(inside, floor.free, np.iinfo(np.int64).max // 2)
                for node, many in seats.items():
                    surplus[node] -= many
                names = tuple(sorted(floor.ground.nodes[node].name for node in seats))
                return KeptRoom(wish.job, in_s, names, surplus)
    finally:
        floor.back(mark)
    return None
