"""Plans repairs: of gangs that lost a worker, sit on draining nodes, or have a straggler.

Repairs come first in a round and take only devices that are free at this moment. A gang that lost a worker continues
with its survivors, or with newcomers in place of the lost workers. If no device is free, the survivors wait while the
market makes room; a gang larger than its tenant may claim goes back to the queue.
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
class _RepairTrial:
    """A copy of the seating on which repairs are tried one after the other."""

    situation: Situation
    seating: SeatingPlan
    done: Repairs = field(default_factory=dict)

    def decide(self, decision: Resize | Preempt) -> None:
        self.done[decision.job] = decision


def plan_repairs(situation: Situation) -> Repairs:
    """A decision for every gang that needs repair; gangs that lost a worker come first."""
    trial = _RepairTrial(situation, situation.seating.copy())
    running = [job for job in situation.jobs.values() if (job.seats or job.broken) and not job.frozen]
    running.sort(key=lambda job: (-job.priority, job.submitted_s, job.id))
    for job in running:
        if job.broken or len(trial.seating.seats[job.id]) < len(job.seats):
            _repair_broken(trial, job)
    for job in running:
        if job.id not in trial.done and not job.broken:
            _leave_draining(trial, job)
    for job in running:
        if job.id not in trial.done and not job.broken and job.slow and job.seats and not job.starts_over:
            _replace_straggler(trial, job)
    return trial.done


def usable_types(situation: Situation, job: JobState) -> list[str]:
    """The device types on which its smallest gang runs, the fastest first."""
    seating = situation.seating
    kinds = [kind for kind in seating.fastest_first(None) if kind in seating.kinds(seating.shape(job))]
    if job.curve is None:
        return kinds
    speeds = {kind: speed_on(job, kind, job.min_workers) for kind in kinds}
    return sorted((kind for kind in kinds if speeds[kind] > 0), key=lambda kind: -speeds[kind])


def _repair_broken(trial: _RepairTrial, job: JobState) -> None:
    """Continue with the survivors if they are enough, else with newcomers; growing again is for later rounds."""
    survivors = trial.seating.seats[job.id]
    if _outdated(trial, survivors):
        text = "lost a worker, and its nodes run another version of Fairlead: back to the queue with its snapshot"
        trial.decide(Preempt(job.id, reason("node-outdated", text, survivors=len(survivors))))
        return
    missing = job.min_workers - len(survivors)
    if missing <= 0:
        text = f"lost a worker; continues with {workers(len(survivors))} on {node_list(survivors)}"
        trial.decide(Resize(job.id, survivors, reason("worker-lost", text, survivors=len(survivors))))
        return
    newcomers = _newcomers(trial, job, missing, survivors)
    if (
        newcomers is None
        and survivors
        and trial.situation.resumes_first(job)
        and not trial.situation.cannot_change(job)
    ):
        return  # its survivors wait while the market makes room for newcomers
    if newcomers is None:
        text = (
            f"lost a worker; it needs {workers(job.min_workers)}, has {len(survivors)} left and there is no room "
            f"for {missing} more: back to the queue with its snapshot"
        )
        trial.decide(Preempt(job.id, reason("worker-lost", text, survivors=len(survivors), missing=missing)))
        return
    trial.seating.sit(job, newcomers)
    text = f"lost a worker; {workers(missing)} replaced on {node_list(newcomers)}"
    facts = {"survivors": len(survivors), "newcomers": missing}
    trial.decide(Resize(job.id, trial.seating.seats[job.id], reason("worker-lost", text, **facts)))


def _newcomers(trial: _RepairTrial, job: JobState, missing: int, survivors: tuple[str, ...]) -> tuple[str, ...] | None:
    """Seats for the missing workers, on a device type that the gang runs on and within its tenant's limits."""
    seating, home = trial.seating, trial.seating.kind(survivors)
    for kind in usable_types(trial.situation, job) if home is None else (home,):
        if missing <= trial.situation.quota_room(job.tenant, kind, trial.seating) and _spare(trial, job, missing, kind):
            seats = place(seating, seating.shape(job).on(kind), missing, survivors)
            if seats is not None:
                return seats
    return None


def _spare(trial: _RepairTrial, job: JobState, missing: int, kind: str) -> bool:
    """Whether so many devices are free besides those guaranteed to other tenants whose gangs wait for them."""
    now = trial.situation
    if kind not in now.guaranteed_types or missing <= (now.guarantee_left(job.tenant, kind) or 0):
        return True
    tree = now.shares.tree
    own = tree.path(job.tenant)
    kept = {name: many for name in now.tenants if name not in own and (many := _kept_for(trial, name, kind))}
    apart = [many for name, many in kept.items() if kept.keys().isdisjoint(set(tree.path(name)) - {name})]
    return missing + sum(apart) <= trial.seating.free_devices(kind)


def _kept_for(trial: _RepairTrial, name: str, kind: str) -> int:
    """Devices of this type that are guaranteed to this tenant, unused by it, and wanted by its waiting gangs."""
    now = trial.situation
    guarantee_left = now.guaranteed(name, kind) - now.held(trial.seating, name, kind)
    if guarantee_left <= 0:
        return 0
    team = now.shares.tree.teams[name]
    waiting = [job for job in now.seen.values()
               if job.tenant in team and not (job.seats or job.broken or job.frozen)]  # fmt: skip
    wanted = (
        job.min_workers for job in waiting if job.min_workers <= guarantee_left and kind in usable_types(now, job)
    )
    return min(guarantee_left, sum(wanted))


def _leave_draining(trial: _RepairTrial, job: JobState) -> None:
    seating, seats = trial.seating, trial.seating.seats[job.id]
    leaving = tuple(name for name in seats if seating.nodes[name].state is NodeState.DRAINING)
    if not leaving:
        return
    if _outdated(trial, seats):
        drained = f"{node_list(leaving)}, which is being drained and runs another version of Fairlead"
        text = f"moves off {drained}: back to the queue with its snapshot"
        trial.decide(Preempt(job.id, reason("node-draining", text, leaves=sorted(set(leaving)))))
        return
    staying = tuple(name for name in seats if name not in leaving)
    smallest = job.min_workers if job.elastic else len(seats)
    seating.leave(job, leaving)
    for size in range(len(seats), max(smallest, len(staying)) - 1, -1):
        newcomers = _elsewhere(trial, job, size - len(staying), staying)
        if newcomers is None:
            continue
        seating.sit(job, newcomers)
        moved = seating.seats[job.id]
        shrunk = f", shrinks to {workers(size)}" if size < len(seats) else ""
        text = f"moves off {node_list(leaving)}, which is being drained, to {node_list(moved)}{shrunk}"
        trial.decide(Resize(job.id, moved, reason("node-draining", text, leaves=sorted(set(leaving)), size=size)))
        return
    seating.sit(job, leaving)  # it holds them until its workers are gone
    text = f"{node_list(leaving)} is being drained and no other node has {devices(len(leaving), job.device_type)} free"
    trial.decide(Preempt(job.id, reason("node-draining", text, leaves=sorted(set(leaving)))))


def _elsewhere(trial: _RepairTrial, job: JobState, count: int, staying: tuple[str, ...]) -> tuple[str, ...] | None:
    """Seats for workers that must move, on their present device type if possible: its limits already count them."""
    seating = trial.seating
    home = seating.kind(job.seats)
    seats = None if home is None else place(seating, seating.shape(job).on(home), count, staying)
    if seats is not None or staying:
        return seats
    for kind in usable_types(trial.situation, job):
        if count <= trial.situation.quota_room(job.tenant, kind, trial.seating):
            seats = place(seating, seating.shape(job).on(kind), count)
            if seats is not None:
                return seats
    return None


def _outdated(trial: _RepairTrial, seats: tuple[str, ...]) -> bool:
    """Whether some sit on nodes of another version, where newcomers cannot join: the gang moves whole or stays."""
    return any(trial.seating.nodes[name].outdated for name in seats)


def _replace_straggler(trial: _RepairTrial, job: JobState) -> None:
    """Move its slowest worker to a better seat, if there is one; otherwise it stays with less to do."""
    seating, seats = trial.seating, trial.seating.seats[job.id]
    leaving = next((name for name in job.slow if name in seats), None)
    if leaving is None or _outdated(trial, seats):
        return
    staying = list(seats)
    staying.remove(leaving)
    pace = like_speed(seating.nodes[leaving].speed)
    shape = seating.shape(job).on(seating.nodes[leaving].device_type)
    better = {
        name: count for name, count in seating.places(shape).slots.items()
        if name not in job.slow and like_speed(seating.nodes[name].speed) >= pace
    }  # fmt: skip
    if not better:
        return
    chosen = min(better, key=lambda name: (name not in staying, better[name], name))
    seating.leave(job, (leaving,))
    seating.sit(job, (chosen,))
    text = (
        f"replaces its worker on {node_list((leaving,))}, which stayed less than half as fast as the others, "
        f"by one on {node_list((chosen,))}"
    )
    trial.decide(Resize(job.id, seating.seats[job.id], reason(STRAGGLER, text, leaves=leaving, takes=chosen)))
