"""From chosen gangs to seats, type by type; who finds none is taken off the menu, so that others get the devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import structs

from fairlead.cluster import Node
from fairlead.scheduling.curves import FAR
from fairlead.scheduling.market.choice import Chosen, Desk, Problem, choose
from fairlead.scheduling.market.dials import Dials
from fairlead.scheduling.market.floor import Kept, Seats, Wish
from fairlead.scheduling.market.ground import Ground
from fairlead.scheduling.market.limits import special
from fairlead.scheduling.market.nested import Nested
from fairlead.scheduling.market.offers import Offers, Pool
from fairlead.scheduling.market.seating import admitted, arranged
from fairlead.scheduling.market.seats import seated
from fairlead.scheduling.market.wishes import wish_of
from fairlead.scheduling.market.worth import Book
from fairlead.scheduling.scaling import PAYBACK, pressed, remaining_s
from fairlead.scheduling.state import ClusterState, Decision, Hold, JobState, Reservation
from fairlead.scheduling.words import reason, span, workers

SETTLE_S = 5.0
"""Live, a gang is not moved for others before it has run for so long ..."""

COST_SHARE = 0.1
"""... and for so long that what moving it costs is no more than this part of the time it ran."""

PASSES = 3
"""How often devices are dealt out anew because somebody found no seats for what it was given."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Seats by job; the gangs (row, type, size) that found none; by type, for whom room is kept, and where."""

    seats: Mapping[str, Seats]
    unseated: tuple[tuple[int, int, int], ...] = ()
    heads: Mapping[int, Wish] = field(default_factory=dict)
    kept: Mapping[int, Kept] = field(default_factory=dict)


Known = dict[tuple[int, tuple[tuple[int, int], ...], Wish | None], tuple[Placed, Wish | None]]
"""What was found by type, gangs (row, size) and for whom room is kept."""


def dealt(
    state: ClusterState, jobs: Sequence[JobState], choices: Offers, pool: Pool, problem: Problem, chosen: Chosen,
    book: Book, dials: Dials,
) -> tuple[Chosen, Placed]:  # fmt: skip
    """Seats for what was chosen; while somebody finds none, devices are dealt out again without it, a few times.

    All who found none on the way stand in ``unseated`` in the end.
    """
    known: Known = {}
    found = placed(state, jobs, choices, pool, problem, chosen, book, dials, known)
    missed = list(found.unseated)
    for _ in range(PASSES - 1):
        if not found.unseated:
            break
        problem = without(problem, choices, found.unseated)
        chosen = choose(problem, Desk if problem.rules is None else Nested)
        found = placed(state, jobs, choices, pool, problem, chosen, book, dials, known, found.heads)
        missed += found.unseated
    return chosen, replace(found, unseated=tuple(missed))


def placed(
    state: ClusterState, jobs: Sequence[JobState], choices: Offers, pool: Pool, problem: Problem, chosen: Chosen,
    book: Book, dials: Dials, known: Known, heads: Mapping[int, Wish] | None = None,
) -> Placed:  # fmt: skip
    """Seats for all chosen gangs; where nothing but devices matters they always find some.

    ``known`` is what was found for the same gangs of a type before, as dealing out anew changes few types.
    """
    column = chosen.column
    got = np.nonzero(column >= 0)[0]
    kinds, sizes = choices.kind[got, column[got]].tolist(), choices.size[got, column[got]].tolist()
    rows: list[list[tuple[int, int]]] = [[] for _ in pool.types]
    for row, kind, size in zip(got.tolist(), kinds, sizes, strict=True):
        rows[kind].append((row, size))
    found = Placed({}, heads=heads or {})
    for kind, wanted in enumerate(rows):
        nodes = [node for node in pool.nodes if node.device_type == pool.types[kind]]
        plain = None
        if kind not in found.heads and not _matters(state, [jobs[row] for row, _ in wanted]):
            plain = _plain(jobs, wanted, nodes, frozen(state, [jobs[row] for row, _ in wanted]))
        if plain is not None:
            found = replace(found, seats={**found.seats, **plain})
        else:
            same = (kind, tuple(wanted), found.heads.get(kind))
            if same not in known:
                worth = problem.utility[np.arange(len(jobs)), column].tolist()
                head = found.heads.get(kind)
                known[same] = _arranged(state, jobs, kind, wanted, Ground.of(nodes), book, dials, worth, head)
            found = _with(found, kind, *known[same])
    return found


def _with(found: Placed, kind: int, here: Placed, head: Wish | None) -> Placed:
    """What was found so far, and on this type."""
    return Placed(
        {**found.seats, **here.seats},
        (*found.unseated, *here.unseated),
        found.heads if head is None else {**found.heads, kind: head},
        {**found.kept, **here.kept},
    )


def _plain(
    jobs: Sequence[JobState], wanted: Sequence[tuple[int, int]], nodes: Sequence[Node],
    frozen: Collection[str] | None = None,
) -> Mapping[str, Seats] | None:
    """Seats where only devices count; None if somebody would have to sit where it does not run at all."""
    now = {jobs[row].id: jobs[row].seats for row, _ in wanted if jobs[row].seats}
    seats = seated(nodes, {jobs[row].id: size for row, size in wanted}, now, frozen)
    for row, size in wanted if len(nodes) > 1 else ():
        where, curve = seats[jobs[row].id], jobs[row].curve
        if where[0] != where[-1] and curve is not None and curve.speed(nodes[0].device_type, size, FAR) <= 0:
            return None
    return seats


def frozen(state: ClusterState, jobs: Sequence[JobState]) -> frozenset[str] | None:
    """Gangs that are not moved so that others sit closer together.

    None where devices that a decision frees can be given away at once: there nobody need keep its seats.
    """
    if state.at_once:
        return None
    return frozenset(job.id for job in jobs if job.seats and not _may_move(job, state.now_s))


def _may_move(job: JobState, now_s: float) -> bool:
    """Not a gang that would start over, has hardly begun, is nearly done, or would miss its deadline by it."""
    size, cost_s = len(job.seats), job.restart_cost_s
    if job.starts_over or now_s - job.since_s < max(SETTLE_S, cost_s / COST_SHARE):
        return False
    left_s = remaining_s(job, size)
    return (left_s is None or left_s > PAYBACK * cost_s) and not pressed(job, size, now_s)


def _matters(state: ClusterState, jobs: Sequence[JobState]) -> bool:
    """Whether anything but the number of devices tells nodes apart for these jobs."""
    if state.sleep_after_s is not None or state.colocation is not None:
        return True
    if not state.at_once and len({round(node.speed, 1) for node in state.nodes}) > 1:
        return True
    return any(special(job) or job.near for job in jobs) or any(
        node.asleep or node.temperature_c is not None for node in state.nodes
    )


def _arranged(
    state: ClusterState, jobs: Sequence[JobState], kind: int, wanted: Sequence[tuple[int, int]], ground: Ground,
    book: Book, dials: Dials, worth: Sequence[float], head: Wish | None,
) -> tuple[Placed, Wish | None]:  # fmt: skip
    """Seats on this type, and for whom room is kept there."""
    device_type, levels = ground.nodes[0].device_type, len(ground.domains)
    row_of = {jobs[row].id: (row, size) for row, size in wanted}
    left, declared = book.left.tolist(), book.declared.tolist()
    wishes = [
        wish_of(jobs[row], device_type, size, levels, left[row], declared[row], worth[row], state.now_s)
        for row, size in wanted
    ]
    wishes, turned_away = admitted(ground, wishes)
    now = {jobs[row].id: jobs[row].seats for row, _ in wanted if jobs[row].seats}
    if head is not None and head.job in row_of:  # it was given a smaller gang instead: nothing is kept for the larger
        head = None
    stay = frozen(state, [jobs[row] for row, _ in wanted])
    here = arranged(
        ground, wishes, now, horizon_s=dials.horizon_s, table=state.colocation, head=head, frozen=stay
    )
    unseated = tuple((row_of[job][0], kind, row_of[job][1]) for job in (*turned_away, *here.unseated))
    if head is None and here.kept is not None:
        head = next(wish for wish in wishes if wish.job == here.kept.job)
    return Placed(here.seats, unseated, {}, {} if here.kept is None else {kind: here.kept}), head


def without(problem: Problem, choices: Offers, unseated: Sequence[tuple[int, int, int]]) -> Problem:
    """The same choice without the gangs that found no seats, nor larger ones of the same job on the same type."""
    utility, first = problem.utility.copy(), problem.first.copy()
    for row, kind, size in unseated:
        utility[row, (choices.kind[row] == kind) & (choices.size[row] >= size)] = 0.0
        if first[row] >= 0 and utility[row, first[row]] <= 0:
            first[row] = -1
    return replace(problem, utility=utility, first=first)


def reservations(placed: Placed, now_s: float) -> tuple[Reservation, ...]:
    """The room that is kept, for those who have no seats elsewhere."""
    return tuple(
        Reservation(kept.job, now_s + kept.in_s, kept.nodes)
        for _, kept in sorted(placed.kept.items())
        if kept.job not in placed.seats
    )


def told(
    decisions: Sequence[Decision], jobs: Sequence[JobState], placed: Placed, now_s: float
) -> tuple[Decision, ...]:
    """The decisions, where those who were given devices but found no seats are told so, and when they will."""
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


def _no_room(hold: Hold, size: int, kept: Kept | None, now_s: float) -> Hold:
    text = f"waits for room: {workers(size)} would be its turn, but what is free is not where they fit together"
    if kept is None:
        return structs.replace(hold, reason=reason("no-room", text, size=size))
    text += f"; room is kept for it on {', '.join(kept.nodes)} in about {span(kept.in_s)}"
    why = reason("room-kept", text, size=size, in_s=kept.in_s, nodes=list(kept.nodes))
    return structs.replace(hold, reason=why, expected_start_s=now_s + kept.in_s)
