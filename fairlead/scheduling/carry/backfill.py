"""Backfill: who is done before the gang that devices are kept for can start may use them until then."""

from __future__ import annotations

from fairlead.scheduling.carry.draft import Draft
from fairlead.scheduling.carry.gain import remaining_s
from fairlead.scheduling.carry.hold import expected_starts
from fairlead.scheduling.carry.start import hold_free, seats_for
from fairlead.scheduling.state import JobState

MARGIN = 1.2
"""A job is taken to run so much longer than it is expected to."""

MOST_TRIED = 64
"""Jobs that are looked at in one round."""


def start_short(draft: Draft) -> None:
    """Start jobs that are known to be short on devices that are kept for a gang which starts later, and is known to."""
    keepers = [name for name, seats in draft.board.held.items() if seats and name not in draft.promised]
    if not keepers:
        return
    queue = draft.queue
    starts = dict(zip((job.id for job in queue), expected_starts(draft, queue), strict=True))
    waiting = [job for job in queue if job.id not in draft.board.held and remaining_s(job, job.min_workers) is not None]
    for job in waiting[:MOST_TRIED]:
        for name in keepers:
            at_s = starts.get(name)
            if at_s is not None and _done_by(draft, job) <= at_s and _start_on_kept(draft, job, draft.jobs[name]):
                break


def _done_by(draft: Draft, job: JobState) -> float:
    run_s = remaining_s(job, job.min_workers) or 0.0
    return draft.now_s + MARGIN * (run_s + job.restart_cost_s)


def _start_on_kept(draft: Draft, job: JobState, keeper: JobState) -> bool:
    """Whether it starts on seats that are kept for the other; what it does not need is kept on."""
    if job.min_workers > draft.quota_room(job.tenant):
        return False
    draft.board.let_go(keeper)
    seats = seats_for(draft, draft.board, job, job.min_workers)
    if seats is not None:
        draft.board.sit(job, seats)
        draft.starting[job.id] = "backfill"
    hold_free(draft, keeper)
    return seats is not None
