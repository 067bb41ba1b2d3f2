"""Defragmentation: the gang that is cheapest to move sits elsewhere, so that one that fits nowhere finds room.

Devices may be free and still of no use to who waits: in another zone than it may run in, or on nodes whose memory is
taken. A gang that could sit on those just as well then moves there, with all its workers and its state. Nobody gives
anything up but the seconds that a new generation takes, so it is done before anybody is shrunk or stopped; and only
where it saves clearly more waiting than it costs, for one gang at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from fairlead.scheduling.carry.board import Board, Shape
from fairlead.scheduling.carry.draft import Draft
from fairlead.scheduling.carry.gain import PAYBACK, pressed, remaining_s
from fairlead.scheduling.carry.place import place
from fairlead.scheduling.carry.reclaim import COST_SHARE, SETTLE_S
from fairlead.scheduling.carry.start import hold_free, kinds_for
from fairlead.scheduling.mentions import Named
from fairlead.scheduling.state import JobState, Resize
from fairlead.scheduling.words import devices, each, on, reason, workers

LOOKED_AT = 32
"""Shapes of waiting jobs that are looked at in one round, in the order of the queue: who is far behind can wait."""

ATTEMPTS = 4
"""... of which so many fit nowhere, and a gang to move is sought for each."""

TRIES = 32
"""Gangs that are looked at in one round, the cheapest first."""

ENDS = 64
"""Gangs that are awaited on paper, those that end soonest first."""


@dataclass(frozen=True, slots=True)
class Move:
    """A gang that could sit elsewhere, and what it would cost, in seconds of its workers."""

    gang: JobState
    seats: tuple[str, ...]
    cost: float


def make_room_by_moving(draft: Draft) -> None:
    """For the first job that has a right to devices and fits on none of those that are free."""
    if draft.moving or draft.board.full:
        return
    seen: set[tuple[Shape, int]] = set()
    attempts, tries = count(1), count(1)
    for job in draft.queue:
        alike = (draft.board.shape(job), job.min_workers)
        if alike in seen or not _entitled(draft, job):
            continue
        seen.add(alike)
        if len(seen) > LOOKED_AT:
            return
        if not draft.board.fits(*alike) and (next(attempts) > ATTEMPTS or _find(draft, job, tries)):
            return


def _entitled(draft: Draft, job: JobState) -> bool:
    """Whether it may start and is meant to, and nobody makes room for it already."""
    if job.id in draft.promised or job.min_workers > draft.quota_room(job.tenant):
        return False
    return job.id in draft.target.size or draft.headroom(job.tenant) >= job.min_workers


def _find(draft: Draft, job: JobState, tries: Iterator[int]) -> bool:
    """Decide on a move for this job, if one pays."""
    for kind in kinds_for(draft, job):
        shape = draft.board.shape(job).on(kind)
        # A move frees as many devices as it takes: without enough of them free, however scattered, it helps nobody.
        if draft.board.free_devices(kind) < job.min_workers or draft.board.most(shape) < job.min_workers:
            continue
        found = list(_moves(draft, job, shape, tries))
        best = min(found, key=lambda move: (move.cost, len(move.seats), move.gang.id), default=None)
        if best is not None and (gain := job.min_workers * _waits_s(draft, job, shape)) > PAYBACK * best.cost:
            _decide(draft, job, best, gain)
            return True
    return False


def _waits_s(draft: Draft, job: JobState, shape: Shape) -> float:
    """How long it would wait if nobody moved: until those who end first have left enough room, as far as is known."""
    horizon_s, board = draft.dials.horizon_s, draft.board.copy()
    board.let_go(job)
    ends = sorted((left_s, other.id) for other in draft.sitting if (left_s := _left_s(draft, other)) < horizon_s)
    for left_s, name in ends[:ENDS]:
        board.leave(draft.jobs[name], board.seats[name])
        if board.places(shape).total >= job.min_workers:
            return left_s
    return horizon_s


def _left_s(draft: Draft, job: JobState) -> float:
    known = remaining_s(job, len(draft.board.seats[job.id]))
    if known is None and "takes_s" in job.facts:
        known = max(0.0, float(job.facts["takes_s"]) - (draft.now_s - job.since_s))
    return draft.dials.horizon_s if known is None else known


def _moves(draft: Draft, job: JobState, shape: Shape, tries: Iterator[int]) -> Iterator[Move]:
    """The gangs whose move would let the job in, the cheapest first, as far as this round has time to look."""
    there = frozenset(draft.board.ready(shape.device_type, shape.only))
    movable = [gang for gang in draft.steady_on(shape) if _may_move(draft, gang)]
    for gang in sorted(movable, key=lambda gang: (len(gang.seats) * gang.restart_cost_s, gang.id)):
        if next(tries) > TRIES:
            return
        seats = _elsewhere(draft, job, shape, gang, there)
        if seats is not None:
            yield Move(gang, seats, len(seats) * (gang.restart_cost_s + _slower_s(draft, gang, seats)))


def _may_move(draft: Draft, gang: JobState) -> bool:
    """Not who would start over, has hardly begun, or would miss its deadline by it."""
    nodes, ran_s = draft.board.nodes, draft.now_s - gang.since_s
    rested = ran_s >= max(SETTLE_S, gang.restart_cost_s / COST_SHARE)
    stable = all(nodes[name].schedulable for name in gang.seats if name in nodes)
    return rested and stable and not gang.starts_over and not pressed(gang, len(gang.seats), draft.now_s)


def _elsewhere(
    draft: Draft, job: JobState, shape: Shape, gang: JobState, there: frozenset[str]
) -> tuple[str, ...] | None:
    """Other seats for as few workers of the gang as must leave so that the job fits; None if there are none."""
    own = draft.board.shape(gang).on(shape.device_type or "")
    inside = sorted({name for name in gang.seats if name in there}, key=lambda name: (gang.seats.count(name), name))
    ways = [(name,) for name in inside] + ([tuple(inside)] if len(inside) > 1 else [])
    for leaves in ways:
        board = draft.board.copy()
        board.let_go(job)
        gone = tuple(name for name in gang.seats if name in leaves)
        staying = tuple(name for name in gang.seats if name not in leaves)
        newcomers = place(board, own, len(gone), staying)  # before it leaves: both are held until it has
        if newcomers is None or not set(leaves).isdisjoint(newcomers):
            continue
        board.sit(gang, newcomers)
        board.leave(gang, gone)
        if board.places(shape).total >= job.min_workers:
            return tuple(sorted((*staying, *newcomers)))
    return None


def _slower_s(draft: Draft, gang: JobState, seats: tuple[str, ...]) -> float:
    """Seconds that each of its workers loses over the horizon as the new seats are slower."""
    board: Board = draft.board
    before, after = (min(board.nodes[name].speed for name in where) for where in (gang.seats, seats))
    return draft.dials.horizon_s * max(0.0, 1.0 - after / before) if before > 0 else 0.0


def _decide(draft: Draft, job: JobState, move: Move, gain: float) -> None:
    """The gang holds its old and its new seats for this round; what it leaves is promised to the job."""
    gang, board = move.gang, draft.board
    left = tuple(sorted(set(gang.seats) - set(move.seats)))
    newcomers = list(move.seats)
    for name in gang.seats:
        if name in newcomers:
            newcomers.remove(name)
    wants = f"{devices(job.min_workers, job.device_type)}{each(board.shape(job).need)}"
    waiting = Named(job.id, job.tenant)
    text = (
        f"moves from {on(left)} to {on(tuple(newcomers))}: waiting {waiting} needs {wants} "
        f"and fits nowhere else, though {devices(board.free_devices(board.kind(gang.seats)))} free; a new generation "
        f"costs {workers(len(gang.seats))} about {gang.restart_cost_s:.1f} s, and saves about {gain:.0f} s of waiting"
    )
    facts = {"for": waiting, "leaves": list(left), "cost_s": move.cost, "saves_s": gain}
    board.sit(gang, tuple(newcomers))
    draft.decide(Resize(gang.id, move.seats, reason("defragment", text, **facts)))
    draft.moving.append(gang.id)
    draft.promised[job.id] = {"victims": [gang.id], "since_s": draft.now_s}
    if job.id not in board.held:
        hold_free(draft, job)
