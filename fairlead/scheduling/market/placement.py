"""Finds seats for the chosen gangs, type by type; if a gang finds none, the devices are dealt out again without it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from msgspec import structs

from fairlead.cluster import Node
from fairlead.scheduling.curves import FAR
from fairlead.scheduling.market.capacity_arrays import NodeCapacity
from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.device_worth import BidColumns
from fairlead.scheduling.market.gang_choice import ChosenGangs, GangRounding, Problem, choose
from fairlead.scheduling.market.limits import needs_node_check
from fairlead.scheduling.market.occupancy import KeptRoom, SeatRequest, Seats
from fairlead.scheduling.market.offers import Ints, Offers, Pool
from fairlead.scheduling.market.seat_requests import seat_request
from fairlead.scheduling.market.seating import arrange_gangs, fit_residency
from fairlead.scheduling.market.seats import seat_gangs
from fairlead.scheduling.market.tree_rounding import TreeRounding
from fairlead.scheduling.phrases import duration_text, reason, workers
from fairlead.scheduling.scaling import PAYBACK, deadline_is_tight, remaining_s
from fairlead.scheduling.state import ClusterState, Decision, Hold, JobState, Reservation

SETTLE_S = 5.0
"""Live, a gang does not move for others before it has run for so long ..."""

COST_SHARE = 0.1
"""... and for so long that what moving it costs is no more than this part of the time it ran."""

PASSES = 3
"""Attempts at most, while some gang finds no seats."""


@dataclass(frozen=True, slots=True)
class PlacedGangs:
    """Seats by job; gangs (row, type, size) without seats; by type, the gang that room is kept for, and the room."""

    seats: Mapping[str, Seats]
    unseated: tuple[tuple[int, int, int], ...] = ()
    heads: Mapping[int, SeatRequest] = field(default_factory=dict)
    kept: Mapping[int, KeptRoom] = field(default_factory=dict)


class PlacementCache(NamedTuple):
    """Results reused between attempts: seats by (type, gangs, head); seat requests by (row, type, size)."""

    placed: dict[tuple[int, tuple[tuple[int, int], ...], SeatRequest | None], tuple[PlacedGangs, SeatRequest | None]]
    requests: dict[tuple[int, int, int], SeatRequest]


def place_gangs(
    state: ClusterState, jobs: Sequence[JobState], choices: Offers, pool: Pool, problem: Problem, chosen: ChosenGangs,
    book: BidColumns, config: MarketConfig,
) -> tuple[ChosenGangs, PlacedGangs]:  # fmt: skip
    """Seats for the chosen gangs. While a gang finds none, the choice is made again without it, a few times.

    ``unseated`` lists all gangs that found none in any attempt.
    """
    known = PlacementCache({}, {})
    found = place_once(state, jobs, choices, pool, problem, chosen, book, config, known)
    missed = list(found.unseated)
    for _ in range(PASSES - 1):
        if not found.unseated:
            break
        problem = without(problem, choices, found.unseated)
        chosen = choose(problem, GangRounding if problem.rules is None else TreeRounding)
        found = place_once(state, jobs, choices, pool, problem, chosen, book, config, known, found.heads)
        missed += found.unseated
    return chosen, replace(found, unseated=tuple(missed))


def place_once(
    state: ClusterState, jobs: Sequence[JobState], choices: Offers, pool: Pool, problem: Problem, chosen: ChosenGangs,
    book: BidColumns, config: MarketConfig, known: PlacementCache, heads: Mapping[int, SeatRequest] | None = None,
) -> PlacedGangs:  # fmt: skip
    """One attempt to seat all chosen gangs; where only devices matter it always succeeds.

    ``known`` holds results for the same gangs of a type, as another attempt changes few types.
    """
    column = chosen.column
    got = np.nonzero(column >= 0)[0]
    kinds, sizes = choices.kind[got, column[got]].tolist(), choices.size[got, column[got]].tolist()
    rows: list[list[tuple[int, int]]] = [[] for _ in pool.types]
    for row, kind, size in zip(got.tolist(), kinds, sizes, strict=True):
        rows[kind].append((row, size))
    found = PlacedGangs({}, heads=heads or {})
    for kind, wanted in enumerate(rows):
        nodes = [node for node in pool.nodes if node.device_type == pool.types[kind]]
        plain = None
        if kind not in found.heads and not _matters(state, [jobs[row] for row, _ in wanted]):
            plain = _plain(jobs, wanted, nodes, immovable_gangs(state, [jobs[row] for row, _ in wanted]))
        if plain is not None:
            found = replace(found, seats={**found.seats, **plain})
        else:
            same = (kind, tuple(wanted), found.heads.get(kind))
            if same not in known.placed:
                capacity, head = NodeCapacity.of(nodes), found.heads.get(kind)
                requests = _seat_requests(state, jobs, kind, wanted, capacity, book, problem, column, known.requests)
                known.placed[same] = _arranged(state, jobs, kind, wanted, capacity, requests, config, head)
            found = _with(found, kind, *known.placed[same])
    return found


def _with(found: PlacedGangs, kind: int, here: PlacedGangs, head: SeatRequest | None) -> PlacedGangs:
    """The results so far, and those of this type."""
    return PlacedGangs(
        {**found.seats, **here.seats},
        (*found.unseated, *here.unseated),
        found.heads if head is None else {**found.heads, kind: head},
        {**found.kept, **here.kept},
    )


def _plain(
    jobs: Sequence[JobState],
    wanted: Sequence[tuple[int, int]],
    nodes: Sequence[Node],
    immovable_gangs: Collection[str] | None = None,
) -> Mapping[str, Seats] | None:
    """Seats where only devices count; None if a gang would be spread over nodes where it does not run."""
    now = {jobs[row].id: jobs[row].seats for row, _ in wanted if jobs[row].seats}
    seats = seat_gangs(nodes, {jobs[row].id: size for row, size in wanted}, now, immovable_gangs)
    for row, size in wanted if len(nodes) > 1 else ():
        where, curve = seats[jobs[row].id], jobs[row].curve
        if where[0] != where[-1] and curve is not None and curve.speed(nodes[0].device_type, size, FAR) <= 0:
            return None
    return seats


def immovable_gangs(state: ClusterState, jobs: Sequence[JobState]) -> frozenset[str] | None:
    """Gangs that must not move for the compactness of others.

    None where freed devices can be given away at once: there no gang need keep its seats.
    """
    if state.at_once:
        return None
    return frozenset(job.id for job in jobs if job.seats and not _may_move(job, state.now_s))


def _may_move(job: JobState, now_s: float) -> bool:
    """Whether the gang may move: not if it would start over, has hardly begun, is nearly done, or would be late."""
    size, cost_s = len(job.seats), job.restart_cost_s
    if job.starts_over or now_s - job.since_s < max(SETTLE_S, cost_s / COST_SHARE):
        return False
    left_s = remaining_s(job, size)
    return (left_s is None or left_s > PAYBACK * cost_s) and not deadline_is_tight(job, size, now_s)


def _matters(state: ClusterState, jobs: Sequence[JobState]) -> bool:
    """Whether nodes differ for these jobs in more than their number of devices."""
    if state.sleep_after_s is not None or state.colocation is not None:
        return True
    if not state.at_once and len({round(node.speed, 1) for node in state.nodes}) > 1:
        return True
    return any(needs_node_check(job) or job.near for job in jobs) or any(
        node.asleep or node.temperature_c is not None for node in state.nodes
    )


def _seat_requests(
    state: ClusterState, jobs: Sequence[JobState], kind: int, wanted: Sequence[tuple[int, int]], capacity: NodeCapacity,
    book: BidColumns, problem: Problem, column: Ints, known: dict[tuple[int, int, int], SeatRequest],
) -> list[SeatRequest]:  # fmt: skip
    """The seat requests of these gangs on this type."""
    device_type, levels = capacity.nodes[0].device_type, len(capacity.domains)
    for row, size in wanted:
        if (row, kind, size) not in known:
            left, declared, worth = book.left[row], book.declared[row], problem.utility[row, column[row]]
            known[row, kind, size] = seat_request(
                jobs[row], device_type, size, levels, float(left), bool(declared), float(worth), state.now_s
            )
    return [known[row, kind, size] for row, size in wanted]


def _arranged(
    state: ClusterState, jobs: Sequence[JobState], kind: int, wanted: Sequence[tuple[int, int]], capacity: NodeCapacity,
    requests: Sequence[SeatRequest], config: MarketConfig, head: SeatRequest | None,
) -> tuple[PlacedGangs, SeatRequest | None]:  # fmt: skip
    """Seats on this type, and the gang that room is kept for."""
    row_of = {jobs[row].id: (row, size) for row, size in wanted}
    requests, turned_away = fit_residency(capacity, requests)
    now = {jobs[row].id: jobs[row].seats for row, _ in wanted if jobs[row].seats}
    if head is not None and head.job in row_of:  # it got a smaller gang instead: no room is kept for the larger one
        head = None
    stay = immovable_gangs(state, [jobs[row] for row, _ in wanted])
    here = arrange_gangs(
        capacity, requests, now, horizon_s=config.horizon_s, table=state.colocation, head=head, frozen=stay
    )
    unseated = tuple((row_of[job][0], kind, row_of[job][1]) for job in (*turned_away, *here.unseated))
    if head is None and here.kept is not None:
        head = next(request for request in requests if request.job == here.kept.job)
    return PlacedGangs(here.seats, unseated, {}, {} if here.kept is None else {kind: here.kept}), head


def without(problem: Problem, choices: Offers, unseated: Sequence[tuple[int, int, int]]) -> Problem:
    """The problem without the gangs that found no seats, and without larger ones of the same job and type."""
    utility, first = problem.utility.copy(), problem.mandatory.copy()
    for row, kind, size in unseated:
        utility[row, (choices.kind[row] == kind) & (choices.size[row] >= size)] = 0.0
        if first[row] >= 0 and utility[row, first[row]] <= 0:
            first[row] = -1
    return replace(problem, utility=utility, mandatory=first)


def reservations(placed: PlacedGangs, now_s: float) -> tuple[Reservation, ...]:
    """Reservations for gangs that have no seats elsewhere."""
    return tuple(
        Reservation(kept.job, now_s + kept.in_s, kept.nodes)
        for _, kept in sorted(placed.kept.items())
        if kept.job not in placed.seats
    )


def with_seat_reasons(
    decisions: Sequence[Decision], jobs: Sequence[JobState], placed: PlacedGangs, now_s: float
) -> tuple[Decision, ...]:
    """The decisions with the reasons of jobs that were chosen but found no seats, and when they will fit."""
    if not placed.unseated:
        return tuple(decisions)
    sizes = {jobs[row].id: size for row, _, size in placed.unseated}
    kept = {one.job: one for one in placed.kept.values()}
    return tuple(
        _no_room(decision, sizes[decision.job], kept.get(decision.job), now_s)
        if isinstance(decision, Hold) and decision.job in sizes
        else decision
        for decision in decisions
    )


def _no_room(hold: Hold, size: int, kept: KeptRoom | None, now_s: float) -> Hold:
    text = f"waits for room: it bids enough for {workers(size)}, but the free devices are not close enough together"
    if kept is None:
        return structs.replace(hold, reason=reason("no-room", text, size=size))
    text += f"; room is kept for it on {', '.join(kept.nodes)} in about {duration_text(kept.in_s)}"
    why = reason("room-kept", text, size=size, in_s=kept.in_s, nodes=list(kept.nodes))
    return structs.replace(hold, reason=why, expected_start_s=now_s + kept.in_s)
