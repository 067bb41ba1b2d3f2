"""Reads the input of a round as one value, and stores the decisions of the round."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection

from fairlead.cluster import Node
from fairlead.control.accounting.budgets import Spending, record_budget_events, spendings, spent_budgets
from fairlead.control.accounting.fairness import record_fairness_events
from fairlead.control.plans.interference import gang_placements
from fairlead.control.plans.speed_curves import CalibratedCurve
from fairlead.control.reconcile import next_generation
from fairlead.control.reconcile.cluster_state import cluster_state, end_is_stored, inert_job_state
from fairlead.control.reconcile.data_locality import Labels, Resident, prefer_nodes_with_data
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.reconcile.internal_errors import must_propagate, report_error
from fairlead.control.reconcile.next_generation import SeatedGang
from fairlead.control.records import Generation, Job, JobPhase, Tenant, stop_changes
from fairlead.control.store import (
    datasets,
    events,
    generations,
    interference,
    jobs,
    ledger,
    tenants,
)
from fairlead.control.store import (
    policy_memory as memory,
)
from fairlead.control.store.engine import Store
from fairlead.scheduling.market.policy import DEFAULT_CONFIG
from fairlead.scheduling.reasons import Explanation
from fairlead.scheduling.round_memory import durable_memory, memory_from_plain, memory_to_plain
from fairlead.scheduling.state import (
    DEFAULT_SHARING,
    ClusterState,
    Decision,
    Hold,
    JobState,
    Preempt,
    Reason,
    Resize,
    Round,
    Sharing,
    Start,
)

STORE_MEMORY_EVERY_S = 60.0  # so often the policy's memory is stored even if no promise in it changed


@dataclass(frozen=True, slots=True)
class RoundInput:
    """The scheduler's state together with the rows needed to store its decisions."""

    cluster: ClusterState
    jobs: Mapping[str, Job]
    generations: Mapping[str, list[Generation]]
    facts: Mapping[str, Mapping[str, WorkerFact]]
    spendings: Mapping[str, Spending] = field(default_factory=dict)  # of tenants with a budget
    invalid_jobs: Mapping[str, Exception] = field(default_factory=dict)  # jobs whose own facts cannot be understood

    def without_memory(self) -> RoundInput:
        """The same input with an empty memory of the policy."""
        return replace(self, cluster=replace(self.cluster, memory={}))

    def without_jobs(self, some: Collection[str]) -> RoundInput:
        """The same input, but these jobs only hold what they hold."""
        if not some:
            return self
        inerts = {name: inert_job_state(self.jobs[name], self.generations.get(name, ()), self.facts.get(name, {}))
                  for name in some if name in self.jobs}  # fmt: skip
        kept = (inerts.get(one.id, one) for one in self.cluster.jobs)
        return replace(self, cluster=replace(self.cluster, jobs=tuple(one for one in kept if one is not None)))


@dataclass
class LastRound:
    """The outcome of the last round, for queries; a new leader derives it again by its first round.

    What runs, and why, is stored with its generation; what was stopped, and why, as an event.
    """

    holds: Mapping[str, Hold]
    entitlements: Mapping[str, float]
    decided_s: float = 0.0
    memory: Mapping[str, Any] | None = None  # the policy's; None: as it was stored
    stored_s: float = 0.0  # when it was last stored
    reasons: Mapping[str, Explanation] = field(default_factory=dict)  # of all its jobs
    cluster: ClusterState | None = None  # what was decided by; None: nothing was decided yet

    def after(self, cluster: ClusterState, decided: Round, *, stored: bool) -> LastRound:
        """The outcome of this round; ``stored``: its memory was stored."""
        holds = {decision.job: decision for decision in decided.decisions if isinstance(decision, Hold)}
        stored_s = cluster.now_s if stored else self.stored_s
        return LastRound(holds, decided.entitlements, cluster.now_s, decided.memory, stored_s, decided.reasons, cluster)

    def must_store_memory(self, decided: Round, now_s: float) -> bool:
        """True if the memory of this round has to be stored: most of it changes all the time and may be a bit old in
        the store."""
        old = now_s - self.stored_s >= STORE_MEMORY_EVERY_S
        return old or self.memory is None or durable_memory(self.memory) != durable_memory(decided.memory)


def _load_memory(connection: Connection) -> dict[str, Any]:
    """The stored memory of the policy; empty if it cannot be read."""
    try:
        return memory_from_plain(memory.load(connection))
    except Exception as error:
        if must_propagate(error):
            raise
        report_error("recalling what the policy remembers", error)
        return {}


async def read_state(
    store: Store, now_s: float, nodes: Mapping[str, Node], known: GangRegistry, undecided: frozenset[str],
    memory_now: Mapping[str, Any] | None = None, curves: Callable[[Job], CalibratedCurve | None] = lambda job: None,
    refresh_curves: Callable[[Sequence[Job]], Awaitable[None]] | None = None, sharing: Sharing = DEFAULT_SHARING,
    quarantined: Collection[str] = (),
) -> RoundInput:  # fmt: skip
    """Everything that this round depends on, read at one moment; ``memory_now``: the last round's memory, if known.

    ``refresh_curves`` gets a moment for the jobs before their curves are asked for. Jobs in quarantine only hold what
    they hold, and so do those whose own facts are invalid.
    """

    def work(
        connection: Connection,
    ) -> tuple[
        list[Job], dict[str, list[Generation]], list[Tenant], dict[str, float], dict[str, Any], dict[str, Spending]
    ]:
        active = jobs.active(connection)
        busy = {job.id for job in active if job.phase is not JobPhase.QUEUED}
        teams = tenants.all_tenants(connection)
        return (
            active,
            generations.live_by_job(connection, busy),
            teams,
            ledger.attained(connection, now_s, DEFAULT_CONFIG.under(sharing).forget_s),
            _load_memory(connection) if memory_now is None else dict(memory_now),
            spendings(connection, teams, now_s),
        )

    active, live, teams, attained, remembered, budgets = await store.read(work)
    reading = [job for job in active if "data" in job.facts] if any(known.resident.values()) else []
    labels = await store.read(lambda connection: _labels(connection, reading)) if reading else {}
    if refresh_curves is not None:
        await refresh_curves(active)
    facts = {job: dict(workers) for job, workers in known.workers.items() if workers}
    known.restore_back_offs(active, now_s)
    cooling = {job for job, until_s in known.cooling_until_s.items() if until_s > now_s}
    unsure = {job for job, of_job in live.items() if any(m.node in undecided for g in of_job for m in g.members)}
    jobs_now = [job for job in active if job.id not in cooling or job.phase is not JobPhase.QUEUED]
    poison = _damaged_jobs(active, live)
    held = {*quarantined, *poison}
    cluster = cluster_state(
        now_s, list(nodes.values()), teams, attained, jobs_now, live, facts, frozenset(cooling | unsure), remembered,
        spent_budgets(teams, budgets),
        {name: known.measured_usage.facts(name) for name in facts}, curves, held, poison,
    )  # fmt: skip
    near = tuple(_with_data_nodes(job, known.resident, labels, poison) for job in cluster.jobs)
    cluster = replace(cluster, colocation=known.interference.table or None, jobs=near, sharing=sharing)
    return RoundInput(cluster, {job.id: job for job in active}, live, facts, budgets, poison)


def _damaged_jobs(active: Sequence[Job], live: Mapping[str, Sequence[Generation]]) -> dict[str, Exception]:
    """Jobs with an unreadable part that a decision depends on; a job that is ending needs none."""
    found: dict[str, Exception] = {}
    for job in active:
        if end_is_stored(job):
            continue
        if jobs.DAMAGED in job.facts:
            found[job.id] = ValueError(f"cannot be read: {', '.join(job.facts[jobs.DAMAGED])}")
        elif any(not generation.members for generation in live.get(job.id, ())):
            found[job.id] = ValueError("its generation cannot be read")
    return found


def _with_data_nodes(job: JobState, resident: Resident, labels: Labels, poison: dict[str, Exception]) -> JobState:
    try:
        return prefer_nodes_with_data([job], resident, labels)[0]
    except Exception as error:  # noqa: BLE001 (one job's edge: it runs wherever it may)
        poison[job.id] = error
        return job


def _labels(connection: Connection, reading: Sequence[Job]) -> Labels:
    """The labels under which nodes hold what these jobs read; a job of an older version may name no version, and reads
    the newest."""
    wanted: dict[str, set[str]] = {}
    for job in reading:
        wanted.setdefault(job.tenant, set()).update(job.facts["data"])
    found: dict[tuple[str, str], Sequence[str]] = {}
    for tenant, refs in wanted.items():
        names = {ref.partition("@")[0] for ref in refs}
        for (name, version), labels in datasets.labels_by_version(connection, tenant, names).items():
            found[tenant, name] = found[tenant, f"{name}@{version}"] = labels
    return found


def update_placements(state: RoundInput, known: GangRegistry) -> None:
    """Tell the interference watch which gangs share nodes from now on."""
    paces = {node.name: node.speed for node in state.cluster.nodes}
    known.interference.set_placements(
        gang_placements(state.cluster.jobs, state.jobs, state.generations, paces), state.jobs.keys()
    )


async def learn_interference(store: Store, known: GangRegistry, now_s: float) -> None:
    """Measure how gangs progress beside others, and store what that says about their classes."""
    lost = known.interference.close_windows(now_s)
    if lost:
        await store.write(lambda connection: interference.record_slowdowns(connection, lost, now_s))


def apply_round(
    connection: Connection, state: RoundInput, decided: Round, gangs: Mapping[str, SeatedGang], *,
    remember: bool = True, failed: dict[str, Exception] | None = None,
) -> set[str]:  # fmt: skip
    """Store the decisions that still hold; returns the jobs that have an action to carry out now.

    A decision that cannot be stored is left out and its job put into ``failed``; without it the error is raised.
    """
    ports = generations.ports_in_use(connection) if gangs else set()
    changed: set[str] = set()
    for decision in decided.decisions:
        if isinstance(decision, Hold) or (failed is not None and decision.job in failed):
            continue
        savepoint = connection.begin_nested()
        try:
            if _apply(connection, state, ports, decision, gangs.get(decision.job)):
                changed.add(decision.job)
        except Exception as error:
            if failed is None or must_propagate(error):
                raise
            savepoint.rollback()
            failed[decision.job] = error
        else:
            savepoint.commit()
    record_budget_events(connection, state.spendings.values(), state.cluster.now_s)
    record_fairness_events(connection, state.cluster.memory, decided.memory, state.cluster.now_s)
    if remember:
        memory.save(connection, memory_to_plain(decided.memory))
    return changed


def _apply(
    connection: Connection, state: RoundInput, ports: set[int], decision: Decision, gang: SeatedGang | None
) -> bool:  # fmt: skip
    job, now_s = _unchanged(connection, state, decision.job), state.cluster.now_s
    if job is None:
        return False
    match decision:
        case Start(seats=seats) | Resize(seats=seats) if gang is not None:
            if gang.newest is not None and not job.training:
                return _preempt(connection, job, gang.reason, now_s)
            nodes, facts = {node.name: node for node in state.cluster.nodes}, {"seats": list(seats)}
            return next_generation.store_generation(connection, replace(gang, job=job), nodes, now_s, ports, facts)
        case Preempt(reason=reason):
            return _preempt(connection, job, reason, now_s)
        case _:
            return False


def _preempt(connection: Connection, job: Job, reason: Reason, now_s: float) -> bool:
    if job.phase not in (JobPhase.RUNNING, JobPhase.STARTING):
        return False
    jobs.update(connection, job.id, **stop_changes(JobPhase.QUEUED, "preempted", None, now_s))
    events.append(connection, time_s=now_s, kind="job-preempted", text=f"{job.id}: {reason.text}", tenant=job.tenant,
                  job=job.id, facts={"reason": reason.code})  # fmt: skip
    return True


def _unchanged(connection: Connection, state: RoundInput, job_id: str) -> Job | None:
    """The job, unless it moved on since the round read it."""
    read, stored = state.jobs.get(job_id), jobs.get(connection, job_id)
    if read is None or stored is None or (stored.phase, stored.generation) != (read.phase, read.generation):
        return None
    return stored
