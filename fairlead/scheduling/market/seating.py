"""Seats for gangs that ask for more than devices: who stays, stays; then room is looked for, made, or kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fairlead.cluster import counted
from fairlead.scheduling.market.capacity_arrays import NodeCapacity
from fairlead.scheduling.market.colocation import ClassesByNode, Table
from fairlead.scheduling.market.defrag import MOST_MOVES, MoveBudget, make_room
from fairlead.scheduling.market.occupancy import KeptRoom, Occupancy, SeatRequest, Seats
from fairlead.scheduling.market.reservations import reserved
from fairlead.scheduling.market.seats import shrunk
from fairlead.scheduling.market.tree import best_seats


@dataclass(frozen=True, slots=True)
class SeatedGangs:
    """Seats by job, who found none, and the room that is kept for the first of those."""

    seats: Mapping[str, Seats]
    unseated: tuple[str, ...]
    kept: KeptRoom | None = None


def admitted(ground: NodeCapacity, wishes: Sequence[SeatRequest]) -> tuple[list[SeatRequest], tuple[str, ...]]:
    """Of gangs that may only run in some places those worth most, as far as these places hold them; and the others.

    Devices were dealt out by type, so a zone may have been promised to more gangs than it holds. Those who may run
    anywhere do not count: they can go elsewhere.
    """
    bound = sorted((wish for wish in wishes if wish.only), key=lambda wish: (-wish.worth / wish.size, wish.job))
    inside = {wish.only: ground.allowed(wish.only) for wish in bound}
    left = {only: int(ground.devices[where].sum()) for only, where in inside.items()}
    around = {
        only: [other for other, wide in inside.items() if not (where & ~wide).any()] for only, where in inside.items()
    }
    away: set[str] = set()
    for wish in bound:
        if any(left[other] < wish.size for other in around[wish.only]):
            away.add(wish.job)
            continue
        for other in around[wish.only]:
            left[other] -= wish.size
    return [wish for wish in wishes if wish.job not in away], tuple(sorted(away))


def arranged(
    ground: NodeCapacity, wishes: Sequence[SeatRequest], now: Mapping[str, Seats], *, horizon_s: float = 600.0,
    table: Table | None = None, head: SeatRequest | None = None, frozen: Collection[str] | None = None,
) -> SeatedGangs:  # fmt: skip
    """Seats on these nodes of one type; ``now`` is where gangs sit so far.

    Who may only run in some places comes first, then the largest: what is small finds room in between. A gang that
    fits nowhere, even after others were moved, has room kept for it; behind it only those go on that are gone by then.
    ``head`` is a gang that was found to fit nowhere before: it has room kept for it, and is not tried again.
    Unless ``frozen`` is None gangs that grow or shrink keep the seats they have, those frozen are never moved, and
    nodes that are about as warm or as fast count as alike.
    """
    by_job = {wish.job: wish for wish in wishes}
    neighbours = None if table is None else ClassesByNode.of(table, (wish.kind for wish in wishes), len(ground.nodes))
    floor = Occupancy(ground, by_job, neighbours, rough=frozen is not None)
    ordered = sorted(wishes, key=_rank)
    for wish in ordered:
        before = now.get(wish.job, ())
        if before and floor.can_stay(wish, before):
            floor.sit(wish.job, counted(ground.at[name] for name in before))
    if frozen is not None:
        _resize(floor, ordered, now)
    moves = MoveBudget(frozenset(floor.gangs), horizon_s, MOST_MOVES if frozen is None else 1, frozen=frozen or ())
    unseated: list[str] = []
    for wish in ordered if head is None else sorted((*ordered, head), key=_rank):
        if wish is head:
            floor.kept = reserved(floor, wish)
        elif wish.job not in floor.gangs and not _seat(floor, wish, moves):
            unseated.append(wish.job)
            if floor.kept is None:
                floor.kept = reserved(floor, wish)
    return SeatedGangs({job: floor.seats(job) for job in by_job if job in floor.gangs}, tuple(unseated), floor.kept)


def _resize(floor: Occupancy, wishes: Sequence[SeatRequest], now: Mapping[str, Seats]) -> None:
    """Gangs of another size than before: on some of their seats, or on all of them and others besides."""
    for wish in wishes:
        before = now.get(wish.job, ())
        if wish.job in floor.gangs or not before or any(name not in floor.ground.at for name in before):
            continue
        has = Counter(floor.ground.at[name] for name in before)
        counts = shrunk(has, wish.size)
        same = replace(wish, size=counts.total())
        if not floor.can_stay(same, tuple(floor.ground.nodes[node].name for node in counts.elements())):
            continue
        floor.sit(wish.job, counts)
        if same.size < wish.size:
            more = best_seats(floor, replace(wish, size=wish.size - same.size))
            floor.leave(wish.job)
            if more is not None:
                floor.sit(wish.job, counts + Counter(more))


def _rank(wish: SeatRequest) -> tuple[bool, int, str]:
    return (not wish.only, -wish.size, wish.job)


def _seat(floor: Occupancy, wish: SeatRequest, moves: MoveBudget) -> bool:
    found = next((seats for inside in floor.paces if (seats := best_seats(floor, wish, inside)) is not None), None)
    pace = 0.0 if found is None else wish.pace(floor.level(found))
    if make_room(floor, wish, moves, now_pace=pace):
        return True
    if found is not None:
        floor.sit(wish.job, found)
    return found is not None
