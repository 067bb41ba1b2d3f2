"""Builds the scheduler's state from stored rows and worker facts, and what a gang's ranks need from its seats. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from fairlead.cluster import Node, Placement
from fairlead.control.plans.speed_curves import CalibratedCurve
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.reconcile.rendezvous import Rendezvous
from fairlead.control.reconcile.straggler_replacement import straggler_nodes
from fairlead.control.records import ENDED, Generation, GenerationPhase, Job, JobPhase, Tenant
from fairlead.recovery.deaths import OTHERS, Cause
from fairlead.scheduling.state import ClusterState, JobState, SpentBudget, TenantState

RESTART_S, COMMAND_RESTART_S = 1.0, 30.0
"""Assumed cost of a new generation of a training, or of a command, before one was measured."""

WORTH_GROWING_S = 3.0
"""A training that would end sooner than this at its present speed does not grow."""

LEAST_RESTART_S, MOST_RESTART_S = 0.5, 300.0
"""Bounds of the measured cost: an outlier says little about the next time."""

_NOT_ITS_FAULT = frozenset({*map(str, OTHERS), str(Cause.KILLED)})

Facts = Mapping[str, Mapping[str, WorkerFact]]  # job -> worker -> fact
LiveGenerations = Mapping[str, Sequence[Generation]]


def cluster_state(
    now_s: float,
    nodes: Sequence[Node],
    tenants: Iterable[Tenant],
    attained_device_s: Mapping[str, float],
    jobs: Iterable[Job],
    generations: LiveGenerations,
    facts: Facts,
    cooling: frozenset[str],
    memory: Mapping[str, object],
    spent: Mapping[str, SpentBudget] | None = None,
    used: Mapping[str, Mapping[str, float]] | None = None,
    curves: Callable[[Job], CalibratedCurve | None] = lambda job: None,
    quarantined: Collection[str] = (),
    invalid_jobs: dict[str, Exception] | None = None,
) -> ClusterState:
    """The value that one round of decisions depends on.

    Jobs in quarantine only hold what they hold. So do jobs whose own facts are invalid; these are put into
    ``invalid_jobs``, without which the error is raised.
    """
    outdated = {node.name for node in nodes if node.outdated}

    def state_of(job: Job) -> JobState | None:
        live, workers = generations.get(job.id, ()), facts.get(job.id, {})
        if job.id in quarantined:
            return inert_job_state(job, live, workers)
        try:
            own = None if used is None else used.get(job.id)
            made = job_state(job, live, workers, cooling=job.id in cooling, used=own, pace=curves(job))
        except Exception as error:
            if invalid_jobs is None:
                raise
            invalid_jobs[job.id] = error
            return inert_job_state(job, live, workers)
        return _fixed_on_outdated_nodes(made, outdated)

    return ClusterState(
        now_s=now_s,
        nodes=tuple(nodes),
        tenants=tuple(
            tenant_state(tenant, attained_device_s.get(tenant.name, 0.0), (spent or {}).get(tenant.name))
            for tenant in tenants
        ),
        jobs=tuple(state for state in map(state_of, jobs) if state is not None),
        memory=memory,
    )


def tenant_state(tenant: Tenant, attained_device_s: float = 0.0, spent: SpentBudget | None = None) -> TenantState:
    """One tenant as the scheduler sees it."""
    return TenantState(
        tenant.name, tenant.weight, tenant.quota, attained_device_s, spent,
        parent=tenant.parent, guarantee=tenant.guarantee, most=tenant.most,
    )  # fmt: skip


def _fixed_on_outdated_nodes(job: JobState, outdated: set[str]) -> JobState:
    """Fixes the size of a gang on outdated nodes: it cannot take in workers of this version."""
    return replace(job, elastic=False) if outdated and not outdated.isdisjoint(job.seats) else job


def job_state(
    job: Job, live: Sequence[Generation], workers: Mapping[str, WorkerFact], *, cooling: bool,
    used: Mapping[str, float] | None = None, pace: CalibratedCurve | None = None,
) -> JobState:  # fmt: skip
    """One job as the scheduler sees it; ``used`` is what its workers were measured to use, ``pace`` how fast it may
    run.

    A job with unknown remaining work that has a deadline or a stated duration gets no curve: it is better off without.
    """
    newest = live[-1] if live else None
    broken = is_broken(job, live)
    settled = job.phase is JobPhase.RUNNING and newest is not None and all_members_train(newest, workers)
    waiting = job.phase is JobPhase.QUEUED
    left = _remaining(job)
    seats = () if waiting else occupied_seats(live, workers, broken=broken, over=end_is_stored(job))
    done = float(job.step * job.batch_size)
    if left is None and (job.finish_by_s is not None or "takes_s" in job.facts):
        pace = None
    return JobState(
        id=job.id,
        tenant=job.tenant,
        person=job.submitted_by,
        submitted_s=job.submitted_s,
        min_workers=job.min_workers,
        max_workers=max_workers_now(job, pace, left, len(seats), newest),
        demand=job.demand,
        device_type=job.device_type,
        priority=job.priority,
        start_by_s=job.start_by_s,
        finish_by_s=job.finish_by_s,
        seats=seats,
        since_s=job.since_s if newest is None or newest.running_s is None else newest.running_s,
        elastic=job.elastic and job.training,
        broken=broken,
        frozen=not waiting and not broken and (not settled or cooling),
        speeds=job.speeds,
        remaining_samples=left,
        curve=None if pace is None else pace.curve,
        work_left=None if pace is None or left is None else left / pace.unit,
        restart_cost_s=restart_cost_s(job, newest),
        starts_over=not job.training,
        work_done=done if pace is None else done / pace.unit,
        facts={**job.facts, **used} if used else job.facts,
        only=frozenset(job.facts.get("only", ())),
        near=frozenset(job.facts.get("near", ())),
        slow=straggler_nodes(newest, workers),
        leaving=leaving_seats(job, live, workers, seats),
        interrupted_s=interrupted_s(job) if waiting else None,
    )


def inert_job_state(job: Job, live: Sequence[Generation], workers: Mapping[str, WorkerFact]) -> JobState | None:
    """A job about which nothing is decided: it holds what it holds; None if that is nothing."""
    seats = () if job.phase is JobPhase.QUEUED else occupied_seats(live, workers, broken=is_broken(job, live))
    if not seats:
        return None
    demand = {name: each for name, each in job.demand.items() if isinstance(each, int | float)}
    return JobState(job.id, job.tenant, job.submitted_s, demand=demand, seats=seats, frozen=True,
                    min_workers=len(seats), max_workers=len(seats))  # fmt: skip


def max_workers_now(
    job: Job, pace: CalibratedCurve | None, left: float | None, seats: int, newest: Generation | None = None
) -> int:  # fmt: skip
    """How many workers it may have now: a job about to end does not grow, as joining costs more than it gains, nor does
    a gang that gave back devices it was offered."""
    if newest is not None and newest.enough:
        return max(job.min_workers, min(len(newest.members), job.max_workers))
    soon = left is not None and left < job.samples_per_s * WORTH_GROWING_S
    if not job.training or pace is not None or not soon:
        return job.max_workers
    return max(job.min_workers, min(seats, job.max_workers))


def restart_cost_s(job: Job, newest: Generation | None) -> float:
    """What a new generation would cost: as long as the last one took to come up, with its snapshot.

    The first generation of a training starts cold, which says nothing about the next, where survivors only rejoin.
    """
    if newest is None or newest.running_s is None or (job.training and newest.number == 1):
        return RESTART_S if job.training else COMMAND_RESTART_S
    return min(max(newest.running_s - newest.created_s, LEAST_RESTART_S), MOST_RESTART_S)


def is_broken(job: Job, live: Sequence[Generation]) -> bool:
    """True if the gang lost a worker and its next generation is not planned yet."""
    newest = live[-1] if live else None
    return newest is not None and newest.broken_s is not None and job.phase in (JobPhase.STARTING, JobPhase.RUNNING)


def all_members_train(generation: Generation, workers: Mapping[str, WorkerFact]) -> bool:
    """True if all members train; a gang of which some have finished must not be moved."""
    if generation.phase is not GenerationPhase.RUNNING:
        return False
    facts = [workers.get(member.worker) for member in generation.at_work]
    return all(fact is not None and fact.alive and fact.phase == "joined" for fact in facts)


def end_is_stored(job: Job) -> bool:
    """True if the store knows how this job ended: then a finished worker's seat goes to the next job at once.

    The node starts the next worker when the process of the former is gone, so that two never use one device; the leader
    need not hear of that first.
    """
    return job.phase is JobPhase.STOPPING and job.then in ENDED


def occupied_seats(
    live: Sequence[Generation], workers: Mapping[str, WorkerFact], *, broken: bool, over: bool = False
) -> tuple[str, ...]:
    """The node of every device that the job holds: of its workers until they are released, and of planned ones not
    started yet.

    A broken gang counts its survivors only, as its dead are released at once.
    """
    left = (fact for fact in workers.values() if not (broken and fact.lost))
    seats = [fact.node for fact in left if not (over and fact.phase == "finished")]
    if not broken:
        known = set(workers)
        seats += [m.node for generation in live for m in generation.members if m.worker not in known]
    return tuple(sorted(seats))


def leaving_seats(
    job: Job, live: Sequence[Generation], workers: Mapping[str, WorkerFact], seats: tuple[str, ...]
) -> tuple[str, ...]:
    """The seats that come free without another decision: all of a stopping job, else those of workers that its newest
    generation does without."""
    if job.phase is JobPhase.STOPPING or not live:
        return seats
    staying, broken = {member.worker for member in live[-1].members}, is_broken(job, live)
    left = (fact for name, fact in workers.items() if name not in staying and not (broken and fact.lost))
    return tuple(sorted(fact.node for fact in left))


def interrupted_s(job: Job) -> float | None:
    """When its newest generation was lost to a node, the platform or a stray signal; None if it ended another way.

    The peers of a lost worker end too, each in its own way: one death that is not the job's fault is enough.
    """
    lost = [death for death in job.deaths if death["generation"] == job.generation]
    times = [float(death["time_s"]) for death in lost if death["cause"] in _NOT_ITS_FAULT]
    return max(times, default=None)


def _remaining(job: Job) -> float | None:
    return float((job.total_steps - job.step) * job.batch_size) if job.total_steps and job.batch_size else None


def batch_shares(members: Placement, nodes: Mapping[str, Node]) -> list[float]:
    """Each rank's share of the global batch, in proportion to the speed of its device (D6)."""
    speeds = [nodes[m.node].speed if m.node in nodes else 1.0 for m in sorted(members, key=lambda m: m.rank)]
    if len(set(speeds)) <= 1:
        return []
    whole = sum(speeds)
    return [speed / whole for speed in speeds]


def rank_environment(members: Placement, point: Rendezvous) -> dict[str, dict[str, str]]:
    """The rendezvous variables known from ``torchrun``, per worker."""
    ranked = sorted(members, key=lambda member: member.rank)
    on_node: dict[str, int] = defaultdict(int)
    per_node = Counter(member.node for member in ranked)
    node_rank = {node: index for index, node in enumerate(dict.fromkeys(member.node for member in ranked))}
    environment = {}
    for member in ranked:
        environment[member.worker] = {
            "RANK": str(member.rank),
            "WORLD_SIZE": str(len(ranked)),
            "LOCAL_RANK": str(on_node[member.node]),
            "LOCAL_WORLD_SIZE": str(per_node[member.node]),
            "GROUP_RANK": str(node_rank[member.node]),
            "MASTER_ADDR": point.address,
            "MASTER_PORT": str(point.port),
        }
        on_node[member.node] += 1
    return environment
