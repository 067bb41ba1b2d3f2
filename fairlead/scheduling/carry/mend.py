"""Gangs that cannot stay as they are: those that lost a worker, and those on nodes that are being drained."""

from __future__ import annotations

from fairlead.cluster import NodeState
from fairlead.scheduling.carry.draft import Draft
from fairlead.scheduling.carry.place import place
from fairlead.scheduling.state import JobState, Preempt, Resize
from fairlead.scheduling.words import devices, on, reason, workers


def mend(draft: Draft) -> None:
    """Decide about every broken gang at once, then move what sits on draining nodes."""
    running = [job for job in draft.jobs.values() if (job.seats or job.broken) and not job.settling]
    running.sort(key=lambda job: (-job.priority, job.submitted_s, job.id))
    for job in running:
        if job.broken or len(draft.board.seats[job.id]) < len(job.seats):
            _mend_broken(draft, job)
    for job in running:
        if job.id not in draft.decisions:
            _leave_draining(draft, job)


def _mend_broken(draft: Draft, job: JobState) -> None:
    """The survivors go on right away if they may; growing again is for later rounds."""
    survivors = draft.board.seats[job.id]
    if _outdated(draft, survivors):
        text = "lost a worker, and its nodes run another version of Fairlead: back to the queue with its snapshot"
        draft.decide(Preempt(job.id, reason("node-outdated", text, survivors=len(survivors))))
        return
    missing = job.min_workers - len(survivors)
    if missing <= 0:
        text = f"lost a worker; goes on with {workers(len(survivors))} on {on(survivors)}"
        draft.decide(Resize(job.id, survivors, reason("worker-lost", text, survivors=len(survivors))))
        return
    newcomers = place(draft.board, draft.board.shape(job), missing, survivors)
    if newcomers is None or missing > draft.quota_room(job.tenant):
        text = (
            f"lost a worker; its gang needs {workers(job.min_workers)}, {len(survivors)} left and no room "
            f"for {missing} more: back to the queue with its snapshot"
        )
        draft.decide(Preempt(job.id, reason("worker-lost", text, survivors=len(survivors), missing=missing)))
        return
    draft.board.sit(job, newcomers)
    text = f"lost a worker; {workers(missing)} replaced on {on(newcomers)}"
    facts = {"survivors": len(survivors), "newcomers": missing}
    draft.decide(Resize(job.id, draft.board.seats[job.id], reason("worker-lost", text, **facts)))


def _leave_draining(draft: Draft, job: JobState) -> None:
    board, seats = draft.board, draft.board.seats[job.id]
    leaving = tuple(name for name in seats if board.nodes[name].state is NodeState.DRAINING)
    if not leaving:
        return
    if _outdated(draft, seats):
        text = f"moves off {on(leaving)}, which is being drained and runs another version of Fairlead, by its snapshot"
        draft.decide(Preempt(job.id, reason("node-draining", text, leaves=sorted(set(leaving)))))
        return
    staying = tuple(name for name in seats if name not in leaving)
    smallest = job.min_workers if job.elastic else len(seats)
    for size in range(len(seats), max(smallest, len(staying)) - 1, -1):
        newcomers = place(board, board.shape(job), size - len(staying), staying, board.kind(seats))
        if newcomers is None:
            continue
        board.leave(job, leaving)
        board.sit(job, newcomers)
        moved = board.seats[job.id]
        shrunk = f", shrinks to {workers(size)}" if size < len(seats) else ""
        text = f"moves off {on(leaving)}, which is being drained, to {on(moved)}{shrunk}"
        draft.decide(Resize(job.id, moved, reason("node-draining", text, leaves=sorted(set(leaving)), size=size)))
        return
    text = f"{on(leaving)} is being drained and no other node has {devices(len(leaving), job.device_type)} free"
    draft.decide(Preempt(job.id, reason("node-draining", text, leaves=sorted(set(leaving)))))


def _outdated(draft: Draft, seats: tuple[str, ...]) -> bool:
    """Whether some sit where newcomers of this version could not meet them: such a gang moves whole or stays."""
    return any(draft.board.nodes[name].outdated for name in seats)
