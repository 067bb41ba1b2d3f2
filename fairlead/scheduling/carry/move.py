"""Moving gangs to another type of device, where the market would have them and they are clearly faster."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.scheduling.carry.draft import Draft
from fairlead.scheduling.carry.gain import speed_on
from fairlead.scheduling.carry.place import place
from fairlead.scheduling.carry.preempt import ATTEMPTS, carry_out, victims_leaving
from fairlead.scheduling.carry.reclaim import COST_SHARE, MIN_RUN_S, Reclaim
from fairlead.scheduling.mentions import Named
from fairlead.scheduling.state import JobState, Resize
from fairlead.scheduling.words import devices, on, reason

FASTER = 1.1
"""A move must make a gang so many times as fast."""


def move_faster(draft: Draft) -> None:
    """Gangs of which it is known how fast they are on each type go where the market has them, if it is free."""
    if len(draft.board.types) < 2 or draft.board.full:
        return
    for job, kind, size, gain in _wishes(draft):
        _move(draft, job, kind, size, gain)


def make_room_for_moves(draft: Draft) -> None:
    """Where it is not free: siblings that the market would not run there give way, and start where it has them."""
    if len(draft.board.types) < 2:
        return
    attempts = {draft.jobs[name].tenant: ATTEMPTS for name in draft.promised if victims_leaving(draft, name)}
    for job, kind, size, gain in sorted(_wishes(draft), key=lambda wish: (-wish[3], wish[0].id)):
        if attempts.get(job.tenant, 0) >= ATTEMPTS or not draft.untouched(job):
            continue
        attempts[job.tenant] = attempts.get(job.tenant, 0) + 1
        reclaim = Reclaim(draft, job, size, kind, for_growth=True)
        if reclaim.make_fit():
            reclaim.prune()
            carry_out(draft, reclaim, f"{Named(job.id, job.tenant)}, {gain:.1f} times as fast on type {kind}")


def _wishes(draft: Draft) -> Iterator[tuple[JobState, str, int, float]]:
    """Who should go to which type, with how many workers, and how many times as fast it would be."""
    for job in draft.steady():
        kind, was = draft.target.kind.get(job.id), draft.board.kind(job.seats)
        if job.curve is None or kind is None or was in (None, kind) or not _rested(draft, job):
            continue
        size = draft.target.size[job.id] if job.elastic else len(job.seats)
        gain = _times_as_fast(job, was or "", kind, size)
        if gain >= FASTER and size <= draft.quota_room(job.tenant, kind):
            yield job, kind, size, gain


def _rested(draft: Draft, job: JobState) -> bool:
    ran_s = draft.now_s - job.since_s
    return not job.starts_over and ran_s >= max(MIN_RUN_S, job.restart_cost_s / COST_SHARE)


def _times_as_fast(job: JobState, was: str, kind: str, size: int) -> float:
    now = speed_on(job, was, len(job.seats))
    return speed_on(job, kind, size) / now if now > 0 else 0.0


def _move(draft: Draft, job: JobState, kind: str, size: int, gain: float) -> None:
    """Its old seats are free only when it has left them: so it holds both for this round."""
    seats = place(draft.board, draft.board.shape(job).on(kind), size)
    if seats is None:
        return
    draft.board.sit(job, seats)
    was = draft.board.kind(job.seats)
    text = (
        f"moves to {devices(size, kind)} on {on(seats)}: {gain:.1f} times as fast as on {devices(len(job.seats), was)}"
    )
    draft.decide(Resize(job.id, seats, reason("faster-devices", text, size=size, was=len(job.seats), gain=gain)))
