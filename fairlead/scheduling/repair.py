"""Repairs: gangs that lost a worker, that sit on nodes which are drained, or that have a straggler.

They come before all else in a round, and take only what is free at this moment: a gang that lost a worker goes on at
once with those that are left, or gets others in their place. If nothing is free its survivors wait while the market
makes room for the others; what is more than its tenant may claim goes back to the queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.cluster import NodeState
from fairlead.scheduling.phrases import devices, node_list, reason, workers
from fairlead.scheduling.placement import place
from fairlead.scheduling.scaling import speed_on
from fairlead.scheduling.seating_plan import SeatingPlan, like_speed
from fairlead.scheduling.situation import Situation
from fairlead.scheduling.state import JobState, Preempt, Resize

STRAGGLER = "straggler"

Repairs = dict[str, Resize | Preempt]
"""By job."""


@dataclass(frozen=True, slots=True)
class _Workshop:
    """A copy of the board on which repairs are tried, one after the other."""

    situation: Situation
    board: SeatingPlan
    done: Repairs = field(default_factory=dict)

    def decide(self, decision: Resize | Preempt) -> None:
        self.done[decision.job] = decision


def plan_repairs(situation: Situation) -> Repairs:
    """What has to be done about every gang that cannot stay as it is: those that lost somebody first."""
    shop = _Workshop(situation, situation.board.copy())
    running = [job for job in situation.jobs.values() if (job.seats or job.broken) and not job.settling]
    running.sort(key=lambda job: (-job.priority, job.submitted_s, job.id))
    for job in running:
        if job.broken or len(shop.board.seats[job.id]) < len(job.seats):
            _mend_broken(shop, job)
    for job in running:
        if job.id not in shop.done and not job.broken:
            _leave_draining(shop, job)
    for job in running:
        if job.id not in shop.done and not job.broken and job.slow and job.seats and not job.starts_over:
            _replace_straggler(shop, job)
    return shop.done


def kinds_for(situation: Situation, job: JobState) -> list[str]:
    """The types of device on which its smallest gang runs, the fastest for it first."""
    board = situation.board
    kinds = [kind for kind in board.fastest_first(None) if kind in board.kinds(board.shape(job))]
    if job.curve is None:
        return kinds
    speeds = {kind: speed_on(job, kind, job.min_workers) for kind in kinds}
    return sorted((kind for kind in kinds if speeds[kind] > 0), key=lambda kind: -speeds[kind])


def _mend_broken(shop: _Workshop, job: JobState) -> None:
    """The survivors go on right away if they may; growing again is for later rounds."""
    survivors = shop.board.seats[job.id]
    if _outdated(shop, survivors):
        text = "lost a worker, and its nodes run another version of Fairlead: back to the queue with its snapshot"
        shop.decide(Preempt(job.id, reason("node-outdated", text, survivors=len(survivors))))
        return
    missing = job.min_workers - len(survivors)
    if missing <= 0:
        text = f"lost a worker; goes on with {workers(len(survivors))} on {node_list(survivors)}"
        shop.decide(Resize(job.id, survivors, reason("worker-lost", text, survivors=len(survivors))))
        return
    newcomers = _newcomers(shop, job, missing, survivors)
    if newcomers is None and survivors and shop.situation.goes_on(job) and not shop.situation.stays_put(job):
        return  # they wait while the market makes room for the others
    if newcomers is None:
        text = (
            f"lost a worker; its gang needs {workers(job.min_workers)}, {len(survivors)} left and no room "
            f"for {missing} more: back to the queue with its snapshot"
        )
        shop.decide(Preempt(job.id, reason("worker-lost", text, survivors=len(survivors), missing=missing)))
        return
    shop.board.sit(job, newcomers)
    text = f"lost a worker; {workers(missing)} replaced on {node_list(newcomers)}"
    facts = {"survivors": len(survivors), "newcomers": missing}
    shop.decide(Resize(job.id, shop.board.seats[job.id], reason("worker-lost", text, **facts)))


def _newcomers(shop: _Workshop, job: JobState, missing: int, survivors: tuple[str, ...]) -> tuple[str, ...] | None:
    """Seats for those who are missing, on a type of device that the gang runs on and of which it may have so many."""
    board, home = shop.board, shop.board.kind(survivors)
    for kind in kinds_for(shop.situation, job) if home is None else (home,):
        if missing <= shop.situation.quota_room(job.tenant, kind, shop.board) and _spare(shop, job, missing, kind):
            seats = place(board, board.shape(job).on(kind), missing, survivors)
            if seats is not None:
                return seats
    return None


def _spare(shop: _Workshop, job: JobState, missing: int, kind: str) -> bool:
    """Whether so many devices are free besides those that are guaranteed to others who wait for them."""
    now = shop.situation
    if kind not in now.sure or missing <= (now.lacking(job.tenant, kind) or 0):
        return True
    tree = now.parts.tree
    own = tree.path(job.tenant)
    kept = {name: many for name in now.tenants if name not in own and (many := _kept_for(shop, name, kind))}
    apart = [many for name, many in kept.items() if kept.keys().isdisjoint(set(tree.path(name)) - {name})]
    return missing + sum(apart) <= shop.board.free_devices(kind)


def _kept_for(shop: _Workshop, name: str, kind: str) -> int:
    """Devices of this type that are guaranteed to this tenant, that it does not have, and that its gangs wait for."""
    now = shop.situation
    lacking = now.guaranteed(name, kind) - now.held(shop.board, name, kind)
    if lacking <= 0:
        return 0
    team = now.parts.tree.teams[name]
    waiting = [job for job in now.seen.values()
               if job.tenant in team and not (job.seats or job.broken or job.settling)]  # fmt: skip
    wanted = (job.min_workers for job in waiting if job.min_workers <= lacking and kind in kinds_for(now, job))
    return min(lacking, sum(wanted))


def _leave_draining(shop: _Workshop, job: JobState) -> None:
    board, seats = shop.board, shop.board.seats[job.id]
    leaving = tuple(name for name in seats if board.nodes[name].state is NodeState.DRAINING)
    if not leaving:
        return
    if _outdated(shop, seats):
        drained = f"{node_list(leaving)}, which is being drained and runs another version of Fairlead"
        text = f"moves off {drained}: back to the queue with its snapshot"
        shop.decide(Preempt(job.id, reason("node-draining", text, leaves=sorted(set(leaving)))))
        return
    staying = tuple(name for name in seats if name not in leaving)
    smallest = job.min_workers if job.elastic else len(seats)
    board.leave(job, leaving)
    for size in range(len(seats), max(smallest, len(staying)) - 1, -1):
        newcomers = _elsewhere(shop, job, size - len(staying), staying)
        if newcomers is None:
            continue
        board.sit(job, newcomers)
        moved = board.seats[job.id]
        shrunk = f", shrinks to {workers(size)}" if size < len(seats) else ""
        text = f"moves off {node_list(leaving)}, which is being drained, to {node_list(moved)}{shrunk}"
        shop.decide(Resize(job.id, moved, reason("node-draining", text, leaves=sorted(set(leaving)), size=size)))
        return
    board.sit(job, leaving)  # until they are gone
    text = f"{node_list(leaving)} is being drained and no other node has {devices(len(leaving), job.device_type)} free"
    shop.decide(Preempt(job.id, reason("node-draining", text, leaves=sorted(set(leaving)))))


def _elsewhere(shop: _Workshop, job: JobState, count: int, staying: tuple[str, ...]) -> tuple[str, ...] | None:
    """Seats for those who have to move: on the type of device they had if possible, so that no limit is in the way."""
    board = shop.board
    home = board.kind(job.seats)
    seats = None if home is None else place(board, board.shape(job).on(home), count, staying)
    if seats is not None or staying:
        return seats
    for kind in kinds_for(shop.situation, job):
        if count <= shop.situation.quota_room(job.tenant, kind, shop.board):
            seats = place(board, board.shape(job).on(kind), count)
            if seats is not None:
                return seats
    return None


def _outdated(shop: _Workshop, seats: tuple[str, ...]) -> bool:
    """Whether some sit where newcomers of this version could not meet them: such a gang moves whole or stays."""
    return any(shop.board.nodes[name].outdated for name in seats)


def _replace_straggler(shop: _Workshop, job: JobState) -> None:
    """A seat elsewhere for its slowest worker, if there is one; otherwise it stays, with less to do."""
    board, seats = shop.board, shop.board.seats[job.id]
    leaving = next((name for name in job.slow if name in seats), None)
    if leaving is None or _outdated(shop, seats):
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
        f"replaces its worker on {node_list((leaving,))}, which stayed less than half as fast as the others, "
        f"by one on {node_list((chosen,))}"
    )
    shop.decide(Resize(job.id, board.seats[job.id], reason(STRAGGLER, text, leaves=leaving, takes=chosen)))
