"""Gangs that cannot stay as they are: those that lost a worker, and those on nodes that are being drained."""

from __future__ import annotations

from fairlead.cluster import NodeState
from fairlead.scheduling.carry.draft import Draft
from fairlead.scheduling.carry.place import place
from fairlead.scheduling.carry.start import kinds_for
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
    newcomers = _newcomers(draft, job, missing, survivors)
    if newcomers is None:
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


def _newcomers(draft: Draft, job: JobState, missing: int, survivors: tuple[str, ...]) -> tuple[str, ...] | None:
    """Seats for those who are missing, on a type of device that the gang runs on and of which it may have so many."""
    board, home = draft.board, draft.board.kind(survivors)
    for kind in kinds_for(draft, job) if home is None else (home,):
        if missing <= draft.quota_room(job.tenant, kind) and _spare(draft, job, missing, kind):
            seats = place(board, board.shape(job).on(kind), missing, survivors)
            if seats is not None:
                return seats
    return None


def _spare(draft: Draft, job: JobState, missing: int, kind: str) -> bool:
    """Whether so many devices are free besides those that are guaranteed to others who wait for them."""
    if kind not in draft.sure or missing <= (draft.lacking(job.tenant, kind) or 0):
        return True
    own = draft.parts.tree.path(job.tenant)
    kept = {name: many for name in draft.tenants if name not in own and (many := _kept_for(draft, name, kind))}
    apart = [many for name, many in kept.items() if kept.keys().isdisjoint(set(draft.parts.tree.path(name)) - {name})]
    return missing + sum(apart) <= draft.board.free_devices(kind)


def _kept_for(draft: Draft, name: str, kind: str) -> int:
    """Devices of this type that are guaranteed to this tenant, that it does not have, and that its gangs wait for."""
    lacking = draft.guaranteed(name, kind) - draft.held(draft.board, name, kind)
    if lacking <= 0:
        return 0
    team = draft.parts.tree.teams[name]
    gangs = [job for job in draft.seen.values() if job.tenant in team and not (job.seats or job.broken or job.settling)]
    wanted = (job.min_workers for job in gangs if job.min_workers <= lacking and kind in kinds_for(draft, job))
    return min(lacking, sum(wanted))


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
    board.leave(job, leaving)
    for size in range(len(seats), max(smallest, len(staying)) - 1, -1):
        newcomers = _elsewhere(draft, job, size - len(staying), staying)
        if newcomers is None:
            continue
        board.sit(job, newcomers)
        moved = board.seats[job.id]
        shrunk = f", shrinks to {workers(size)}" if size < len(seats) else ""
        text = f"moves off {on(leaving)}, which is being drained, to {on(moved)}{shrunk}"
        draft.decide(Resize(job.id, moved, reason("node-draining", text, leaves=sorted(set(leaving)), size=size)))
        return
    board.sit(job, leaving)  # until they are gone
    text = f"{on(leaving)} is being drained and no other node has {devices(len(leaving), job.device_type)} free"
    draft.decide(Preempt(job.id, reason("node-draining", text, leaves=sorted(set(leaving)))))


def _elsewhere(draft: Draft, job: JobState, count: int, staying: tuple[str, ...]) -> tuple[str, ...] | None:
    """Seats for those who have to move: on the type of device they had if possible, so that no limit is in the way."""
    board = draft.board
    home = board.kind(job.seats)
    seats = None if home is None else place(board, board.shape(job).on(home), count, staying)
    if seats is not None or staying:
        return seats
    for kind in kinds_for(draft, job):
        if count <= draft.quota_room(job.tenant, kind):
            seats = place(board, board.shape(job).on(kind), count)
            if seats is not None:
                return seats
    return None


def _outdated(draft: Draft, seats: tuple[str, ...]) -> bool:
    """Whether some sit where newcomers of this version could not meet them: such a gang moves whole or stays."""
    return any(draft.board.nodes[name].outdated for name in seats)
