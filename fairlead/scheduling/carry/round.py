"""One round on a live cluster: what the market wants, as far as it can be done now, and who makes room for the rest."""

from __future__ import annotations

from typing import Any

from fairlead.scheduling.carry.backfill import start_short
from fairlead.scheduling.carry.board import Board
from fairlead.scheduling.carry.defrag import make_room_by_moving
from fairlead.scheduling.carry.draft import Draft
from fairlead.scheduling.carry.gain import useful
from fairlead.scheduling.carry.hold import holds
from fairlead.scheduling.carry.mend import mend
from fairlead.scheduling.carry.move import make_room_for_moves, move_faster
from fairlead.scheduling.carry.order import TURN_S, line_up
from fairlead.scheduling.carry.preempt import make_room_for_growth, make_room_for_waiting
from fairlead.scheduling.carry.replacing import replace_stragglers
from fairlead.scheduling.carry.scale import grow_beyond_claims, grow_within_claims, shrink_slower
from fairlead.scheduling.carry.start import start_borrowers, start_first, start_wanted, start_within_claims
from fairlead.scheduling.carry.target import target
from fairlead.scheduling.market.dials import Dials
from fairlead.scheduling.market.energy import resting
from fairlead.scheduling.market.policy import DEFAULTS
from fairlead.scheduling.state import (
    ClusterState,
    Decision,
    Hold,
    JobState,
    Preempt,
    Reason,
    Reservation,
    Resize,
    Round,
    Start,
)
from fairlead.scheduling.words import devices, on, reason, workers


def carried(state: ClusterState, dials: Dials = DEFAULTS) -> Round:
    """Who starts, grows, shrinks, moves, stops or waits now, and why.

    Devices that a decision frees are not given away in the same round: they are free only when their
    workers are gone. So every round can be carried out at once, in any order.
    """
    return written(drafted(state, dials))


def drafted(state: ClusterState, dials: Dials = DEFAULTS) -> Draft:
    """The round before it is put into words, for who wants to ask it questions."""
    draft = Draft.of(state, dials)
    mend(draft)
    replace_stragglers(draft)
    draft.target = target(state, draft.board, draft.seen, draft.fixed(), draft.parts, draft.dials)
    draft.line = line_up(draft)
    start_first(draft)
    move_faster(draft)
    start_wanted(draft)
    make_room_by_moving(draft)
    make_room_for_waiting(draft)
    shrink_slower(draft)
    grow_within_claims(draft)
    make_room_for_growth(draft)
    make_room_for_moves(draft)
    start_within_claims(draft)
    start_borrowers(draft)
    start_short(draft)
    grow_beyond_claims(draft)
    return draft


def written(draft: Draft) -> Round:
    """What was decided, with a reason for each change and for each job that waits."""
    changes = [*draft.decisions.values(), *(_grown(draft, draft.jobs[name]) for name in draft.growing)]
    starts = [_started(draft, job) for job in draft.line if job.id in draft.starting]
    changes.sort(key=lambda decision: (not isinstance(decision, Preempt), decision.job))
    decisions: list[Decision] = [*changes, *starts, *holds(draft)]
    kept = _reservations(draft, decisions)
    nodes, idle = resting(draft.state, draft.board.seats, kept)
    return Round(tuple(decisions), draft.entitled, _memory(draft) | idle, tuple(nodes), kept)


def _reservations(draft: Draft, decisions: list[Decision]) -> tuple[Reservation, ...]:
    """What is kept for those who wait, until when that is expected to be."""
    kept = {name: seats for name, seats in sorted(draft.board.held.items()) if seats}
    if not kept:
        return ()
    expected = {one.job: one.expected_start_s for one in decisions if isinstance(one, Hold) and one.job in kept}
    return tuple(
        Reservation(name, expected[name] or draft.now_s, seats) for name, seats in kept.items() if name in expected
    )


def _memory(draft: Draft) -> dict[str, Any]:
    """For the next round. A promise lasts until the job is seen to sit: a device may turn out not to be free yet."""
    board, jobs = draft.board, draft.jobs
    has = {name: float(len(seats)) for name, seats in board.seats.items() if seats}
    worth = {name: size * _useful(board, jobs[name]) for name, size in has.items()}
    used, done = (draft.parts.used([jobs[name] for name in has], amounts) for amounts in (has, worth))
    turned = {name: when_s for name, when_s in draft.turned_s.items() if draft.now_s - when_s < TURN_S}
    turned |= {tenant: draft.now_s for tenant, name in draft.turns.items() if name in draft.starting}
    owed = (("promised", draft.promised), ("turned_s", turned), ("moving", draft.moving))
    kept = {name: value for name, value in owed if value}
    return {**draft.target.memory, **draft.parts.memory(used, done), **kept}


def _useful(board: Board, job: JobState) -> float:
    """What each of its devices is worth to it, as in the market: who sits on slow ones is owed the difference."""
    if job.curve is None:
        return 1.0
    seats = board.seats[job.id]
    here = {board.nodes[name].device_type for name in seats if name in board.nodes}
    return useful(job, here, here.union(board.kinds(board.shape(job))), len(seats))


def _grown(draft: Draft, job: JobState) -> Resize:
    seats = draft.board.seats[job.id]
    spare = devices(len(seats) - len(job.seats))
    text = f"grows from {len(job.seats)} to {len(seats)} workers: {spare} to spare, {_share(draft, job)}"
    return Resize(job.id, seats, reason("spare-devices", text, size=len(seats), was=len(job.seats)))


def _started(draft: Draft, job: JobState) -> Start:
    seats, why = draft.board.seats[job.id], draft.starting[job.id]
    code, because = {
        "promised": ("room-made", "room was made for it"),
        "overdue": ("waited-long", "it waited longest"),
        "entitled": ("entitled", _share(draft, job)),
        "backfill": ("backfill", "it is done before the gang that these devices are kept for can start"),
        "borrowing": ("borrowed", f"nobody entitled to these devices can use them now, {_share(draft, job)}"),
    }[why]
    return Start(job.id, seats, _start_reason(code, seats, because))


def _start_reason(code: str, seats: tuple[str, ...], because: str) -> Reason:
    return reason(code, f"starts with {workers(len(seats))} on {on(seats)}: {because}", size=len(seats))


def _share(draft: Draft, job: JobState) -> str:
    own = draft.parts.entitled[draft.parts.tree.own(job.tenant)]
    return f"tenant {job.tenant} then uses {draft.used(job.tenant)} and is entitled to {own:.3g}"
