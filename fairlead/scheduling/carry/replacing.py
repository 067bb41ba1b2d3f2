"""Workers that stay far slower than their node was said to be: one at a time moves to another node."""

from __future__ import annotations

from fairlead.scheduling.carry.board import like_speed
from fairlead.scheduling.carry.draft import Draft
from fairlead.scheduling.state import JobState, Resize
from fairlead.scheduling.words import on, reason

CODE = "straggler"


def replace_stragglers(draft: Draft) -> None:
    """For every settled gang that has one: a seat elsewhere, if there is one; otherwise it stays, with less to do."""
    slow = [job for job in draft.jobs.values() if job.slow and job.seats and not job.settling and not job.starts_over]
    for job in sorted(slow, key=lambda job: (-job.priority, job.submitted_s, job.id)):
        if job.id not in draft.decisions:
            _replace(draft, job)


def _replace(draft: Draft, job: JobState) -> None:
    board, seats = draft.board, draft.board.seats[job.id]
    leaving = next((name for name in job.slow if name in seats), None)
    if leaving is None or any(board.nodes[name].outdated for name in seats):
        return
    staying = list(seats)
    staying.remove(leaving)
    pace = like_speed(board.nodes[leaving].speed)
    shape = board.shape(job).on(board.nodes[leaving].device_type)
    better = {
        name: count for name, count in board.places(shape).slots.items()
        if name not in job.slow and like_speed(board.nodes[name].speed) >= pace
    }  # fmt: skip
    if not better:
        return
    chosen = min(better, key=lambda name: (name not in staying, better[name], name))
    board.leave(job, (leaving,))
    board.sit(job, (chosen,))
    text = (
        f"replaces its worker on {on((leaving,))}, which stayed less than half as fast as the others, "
        f"by one on {on((chosen,))}"
    )
    draft.decide(Resize(job.id, board.seats[job.id], reason(CODE, text, leaves=leaving, takes=chosen)))
