"""Defragments: moves gangs that cost little to move, so that a gang that needs its workers close gets a domain."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from fairlead.scheduling.market.capacity_arrays import Bools
from fairlead.scheduling.market.occupancy import Counts, Occupancy, SeatRequest
from fairlead.scheduling.market.tree import best_seats, runs

MOST_MOVES = 8
"""At most so many running gangs move in one round."""

LOOKED_AT = 8
"""Domains that are tried, those with the smallest shortfall first."""

MOST_TRIES = 256
"""Domains that are tried in one round for all gangs together: a hopelessly fragmented cluster costs little time."""


@dataclass(slots=True)
class MoveBudget:
    """How many running gangs may still move in this round. Gangs that do not run yet move at no cost."""

    running: frozenset[str]
    horizon_s: float
    left: int = MOST_MOVES
    tries: int = MOST_TRIES
    frozen: Collection[str] = ()  # gangs that must not move


def make_room(occupancy: Occupancy, request: SeatRequest, moves: MoveBudget, *, now_pace: float) -> bool:
    """Seat the gang at a better pace than it would have now, in the domain where that costs other gangs least.

    Only if it gains more than they lose, in device seconds over the time that seats are expected to stand.
    """
    for _, last, pace in runs(request, len(occupancy.capacity.domains)):
        if pace <= now_pace:
            return False
        domain = occupancy.capacity.domains[last]
        whole = np.bincount(domain, occupancy.capacity.holds(request.need, request.only))
        lacks = request.size - np.bincount(domain, occupancy.fit(request))
        best, least = -1, request.size * moves.horizon_s * (pace - now_pace)
        for number in np.argsort(np.where(whole >= request.size, lacks, np.inf), kind="stable")[:LOOKED_AT].tolist():
            if whole[number] < request.size or moves.tries <= 0:
                break
            moves.tries -= 1
            mark = occupancy.mark()
            cost = _cleared(occupancy, request, domain == number, moves, least)
            occupancy.back(mark)
            if cost is not None and cost < least:
                best, least = number, cost
            if cost == 0:
                break
        if best >= 0:
            mark = occupancy.mark()
            _cleared(occupancy, request, domain == best, moves, math.inf)
            moves.left -= len(occupancy.touched(mark) & moves.running)
            return True
    return False


def _cleared(occupancy: Occupancy, request: SeatRequest, inside: Bools, moves: MoveBudget, most: float) -> float | None:
    """Cost of moving the cheapest gangs out of the domain until this one fits; None: too much, or impossible."""
    spent, moved = 0.0, 0
    gone: list[tuple[str, float]] = []
    lacking = request.size - int(occupancy.fit(request)[inside].sum())
    for job in _cheapest(occupancy, inside, moves, max(lacking, 1)):
        if (seats := best_seats(occupancy, request, inside)) is not None:
            break
        if job in moves.running:
            moved, spent = moved + 1, spent + occupancy.requests[job].costs_s
            if moved > moves.left or spent >= most:
                return None
        left = occupancy.leave(job)
        gone.append((job, occupancy.requests[job].pace(occupancy.level(left)) * occupancy.tempo(left)))
    else:
        seats = best_seats(occupancy, request, inside)
    if seats is None:
        return None
    occupancy.sit(request.job, seats)
    lost = _reseated(occupancy, gone, moves)
    return None if lost is None else spent + lost


def _cheapest(occupancy: Occupancy, inside: Bools, moves: MoveBudget, lacking: int) -> list[str]:
    """The gangs in there by their cost per needed device; a gang that has not started costs nothing.

    Of equal ones the smaller first: it finds other seats more easily.
    """
    held: dict[str, int] = {}
    for node in np.nonzero(inside)[0].tolist():
        for job, many in occupancy.on[node].items():
            if job not in moves.frozen:
                held[job] = held.get(job, 0) + many

    def price(job: str) -> tuple[float, int, str]:
        costs = occupancy.requests[job].costs_s if job in moves.running else 0.0
        return (costs / min(held[job], lacking), occupancy.requests[job].size, job)

    return sorted(held, key=price)


def _reseated(occupancy: Occupancy, gone: list[tuple[str, float]], moves: MoveBudget) -> float | None:
    """Seat all gangs that left again, the largest first; returns the pace they lose, None if one finds no seats."""
    lost = 0.0
    for job, pace in sorted(gone, key=lambda one: (-occupancy.requests[one[0]].size, one[0])):
        request = occupancy.requests[job]
        seats: Counts | None = best_seats(occupancy, request)
        if seats is None:
            return None
        lost += (
            request.size
            * moves.horizon_s
            * max(0.0, pace - request.pace(occupancy.level(seats)) * occupancy.tempo(seats))
        )
        occupancy.sit(job, seats)
    return lost
