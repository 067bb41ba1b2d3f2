"""Making room: gangs that cost little to move sit elsewhere, so that one that needs its workers close gets a domain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.scheduling.market.floor import Counts, Floor, Wish
from fairlead.scheduling.market.ground import Bools
from fairlead.scheduling.market.tree import best_seats, runs

MOST_MOVES = 8
"""Running gangs that are moved in one round at most."""

LOOKED_AT = 8
"""Domains that are tried, those that lack least first."""


@dataclass(slots=True)
class Moves:
    """How many running gangs may still be moved in this round, and who runs: the others have nothing to lose."""

    running: frozenset[str]
    horizon_s: float
    left: int = MOST_MOVES


def make_room(floor: Floor, wish: Wish, moves: Moves, *, now_pace: float) -> bool:
    """Seat the gang at a better pace than it would have now, if that gains more than the moves cost."""
    for _, last, pace in runs(wish, len(floor.ground.domains)):
        if pace <= now_pace:
            return False
        worth = wish.size * moves.horizon_s * (pace - now_pace)
        domain = floor.ground.domains[last]
        whole = np.bincount(domain, floor.ground.holds(wish.need, wish.only))
        lacks = wish.size - np.bincount(domain, floor.fit(wish))
        for number in np.argsort(np.where(whole >= wish.size, lacks, np.inf), kind="stable")[:LOOKED_AT].tolist():
            if whole[number] < wish.size:
                break
            if _cleared(floor, wish, domain == number, moves, worth):
                return True
    return False


def _cleared(floor: Floor, wish: Wish, inside: Bools, moves: Moves, worth: float) -> bool:
    """Try it: the cheapest gangs leave the domain until this one fits, and all of them find seats as good as theirs."""
    mark, spent, moved = floor.mark(), 0.0, 0
    gone: list[tuple[str, float]] = []
    for job in _cheapest(floor, inside, moves):
        if (seats := best_seats(floor, wish, inside)) is not None:
            break
        if job in moves.running:
            moved, spent = moved + 1, spent + floor.wishes[job].costs_s
            if moved > moves.left or spent >= worth:
                break
        gone.append((job, floor.wishes[job].pace(floor.level(floor.leave(job)))))
    else:
        seats = best_seats(floor, wish, inside)
    if seats is not None and moved <= moves.left and spent < worth:
        floor.sit(wish.job, seats)
        if _reseated(floor, gone):
            moves.left -= moved
            return True
    floor.back(mark)
    return False


def _cheapest(floor: Floor, inside: Bools, moves: Moves) -> list[str]:
    """Who sits in there, by what each freed device costs; who has not started yet costs nothing."""
    held: dict[str, int] = {}
    for node in np.nonzero(inside)[0].tolist():
        for job, many in floor.on[node].items():
            held[job] = held.get(job, 0) + many
    return sorted(held, key=lambda job: (floor.wishes[job].costs_s / held[job] if job in moves.running else 0.0, job))


def _reseated(floor: Floor, gone: list[tuple[str, float]]) -> bool:
    """Everybody who left sits again, nobody at a worse pace; the largest first."""
    for job, pace in sorted(gone, key=lambda one: (-floor.wishes[one[0]].size, one[0])):
        wish = floor.wishes[job]
        seats: Counts | None = best_seats(floor, wish)
        if seats is None or wish.pace(floor.level(seats)) < pace - 1e-9:
            return False
        floor.sit(job, seats)
    return True
