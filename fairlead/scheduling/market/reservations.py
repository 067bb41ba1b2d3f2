"""Reserves room for the first gang that fits nowhere yet: where it will fit first, and the devices beside it."""

from __future__ import annotations

import math

import numpy as np

from fairlead.scheduling.market.capacity_arrays import Bools
from fairlead.scheduling.market.occupancy import KeptRoom, Occupancy, SeatRequest
from fairlead.scheduling.market.tree import best_seats, runs

LOOKED_AT = 16
"""Domains that are tried, those with the smallest shortfall first."""


def reserved(occupancy: Occupancy, request: SeatRequest) -> KeptRoom | None:
    """The earliest room as running gangs end one by one; None if their ends do not help."""
    best: KeptRoom | None = None
    for _, last, pace in runs(request, len(occupancy.capacity.domains)):
        if pace <= 0:
            continue
        domain = occupancy.capacity.domains[last]
        whole = np.bincount(domain, occupancy.capacity.holds(request.need, request.only))
        lacks = request.size - np.bincount(domain, occupancy.fit(request))
        for number in np.argsort(np.where(whole >= request.size, lacks, np.inf), kind="stable")[:LOOKED_AT].tolist():
            if whole[number] < request.size:
                break
            found = _soonest(occupancy, request, domain == number)
            if found is not None and (best is None or found.in_s < best.in_s):
                best = found
    return best


def _soonest(occupancy: Occupancy, request: SeatRequest, inside: Bools) -> KeptRoom | None:
    """When enough gangs of this domain are expected to have ended; tried on the occupancy and undone."""
    mark, in_s = occupancy.mark(), 0.0
    there = {job for node in np.nonzero(inside)[0].tolist() for job in occupancy.on[node]}
    try:
        for job in sorted(there, key=lambda job: (occupancy.requests[job].ends_s, job)):
            in_s = occupancy.requests[job].ends_s
            if not math.isfinite(in_s):
                return None
            occupancy.leave(job)
            seats = best_seats(occupancy, request, inside)
            if seats is not None:
                surplus = np.where(inside, occupancy.free, np.iinfo(np.int64).max // 2)
                for node, many in seats.items():
                    surplus[node] -= many
                names = tuple(sorted(occupancy.capacity.nodes[node].name for node in seats))
                return KeptRoom(request.job, in_s, names, surplus)
    finally:
        occupancy.back(mark)
    return None
