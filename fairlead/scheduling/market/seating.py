"""Seats gangs that need more than devices: gangs that fit stay; then room is found, made by moves, or reserved."""

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
    """Seats by job, the jobs without seats, and the room kept for the first of those."""

    seats: Mapping[str, Seats]
    unseated: tuple[str, ...]
    kept: KeptRoom | None = None


def fit_residency(capacity: NodeCapacity, requests: Sequence[SeatRequest]) -> tuple[list[SeatRequest], tuple[str, ...]]:
    """The requests that fit their residency by worth, and the jobs that do not.

    Devices were dealt out by type, so more gangs may be bound to a zone than it holds. Gangs without residency do not
    count: they can go elsewhere.
    """
    bound = sorted(
        (request for request in requests if request.only),
        key=lambda request: (-request.worth / request.size, request.job),
    )
    inside = {request.only: capacity.allowed(request.only) for request in bound}
    left = {only: int(capacity.devices[where].sum()) for only, where in inside.items()}
    around = {
        only: [other for other, wide in inside.items() if not (where & ~wide).any()] for only, where in inside.items()
    }
    away: set[str] = set()
    for request in bound:
        if any(left[other] < request.size for other in around[request.only]):
            away.add(request.job)
            continue
        for other in around[request.only]:
            left[other] -= request.size
    return [request for request in requests if request.job not in away], tuple(sorted(away))


def arrange_gangs(
    capacity: NodeCapacity, requests: Sequence[SeatRequest], now: Mapping[str, Seats], *, horizon_s: float = 600.0,
    table: Table | None = None, head: SeatRequest | None = None, frozen: Collection[str] | None = None,
) -> SeatedGangs:  # fmt: skip
    """Seats on these nodes of one type; ``now`` are the present seats.

    Gangs with residency come first, then the largest: small gangs find room in between. Room is kept for a gang that
    fits nowhere even after moves; gangs seated after it must be gone by then to use that room. ``head`` is a gang that
    did not fit in an earlier attempt: it gets a reservation without another try. Unless ``frozen`` is None, gangs that
    grow or shrink keep their seats, frozen gangs never move, and nodes of similar temperature or speed count as equal.
    """
    by_job = {request.job: request for request in requests}
    neighbours = (
        None if table is None else ClassesByNode.of(table, (request.kind for request in requests), len(capacity.nodes))
    )
    occupancy = Occupancy(capacity, by_job, neighbours, rough=frozen is not None)
    ordered = sorted(requests, key=_rank)
    for request in ordered:
        before = now.get(request.job, ())
        if before and occupancy.can_stay(request, before):
            occupancy.sit(request.job, counted(capacity.at[name] for name in before))
    if frozen is not None:
        _resize(occupancy, ordered, now)
    moves = MoveBudget(frozenset(occupancy.gangs), horizon_s, MOST_MOVES if frozen is None else 1, frozen=frozen or ())
    unseated: list[str] = []
    for request in ordered if head is None else sorted((*ordered, head), key=_rank):
        if request is head:
            occupancy.kept = reserved(occupancy, request)
        elif request.job not in occupancy.gangs and not _seat(occupancy, request, moves):
            unseated.append(request.job)
            if occupancy.kept is None:
                occupancy.kept = reserved(occupancy, request)
    return SeatedGangs(
        {job: occupancy.seats(job) for job in by_job if job in occupancy.gangs}, tuple(unseated), occupancy.kept
    )


def _resize(occupancy: Occupancy, requests: Sequence[SeatRequest], now: Mapping[str, Seats]) -> None:
    """Seat gangs that change size: on some of their seats, or on all of them and more."""
    for request in requests:
        before = now.get(request.job, ())
        if request.job in occupancy.gangs or not before or any(name not in occupancy.capacity.at for name in before):
            continue
        has = Counter(occupancy.capacity.at[name] for name in before)
        counts = shrunk(has, request.size)
        same = replace(request, size=counts.total())
        if not occupancy.can_stay(same, tuple(occupancy.capacity.nodes[node].name for node in counts.elements())):
            continue
        occupancy.sit(request.job, counts)
        if same.size < request.size:
            more = best_seats(occupancy, replace(request, size=request.size - same.size))
            occupancy.leave(request.job)
            if more is not None:
                occupancy.sit(request.job, counts + Counter(more))


def _rank(request: SeatRequest) -> tuple[bool, int, str]:
    return (not request.only, -request.size, request.job)


def _seat(occupancy: Occupancy, request: SeatRequest, moves: MoveBudget) -> bool:
    found = next(
        (seats for inside in occupancy.paces if (seats := best_seats(occupancy, request, inside)) is not None), None
    )
    pace = 0.0 if found is None else request.pace(occupancy.level(found))
    if make_room(occupancy, request, moves, now_pace=pace):
        return True
    if found is not None:
        occupancy.sit(request.job, found)
    return found is not None
