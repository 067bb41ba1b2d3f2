"""One round: read what it depends on as a value, and store what it decided."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection

from fairlead.cluster import Node, nodes_of, same_seats
from fairlead.control.budgets import Spending, spendings, tell, used_up_by
from fairlead.control.company import sittings
from fairlead.control.curving import Pace
from fairlead.control.fairness import tell_fairness
from fairlead.control.gangs import WorkerFact
from fairlead.control.internal_errors import stays_what_it_is, told
from fairlead.control.known_gangs import Gangs
from fairlead.control.locality import Labels, Resident, near_data, with_data
from fairlead.control.observe import stop_changes
from fairlead.control.records import Generation, GenerationPhase, Job, JobPhase, Tenant
from fairlead.control.rounds import Devices, cluster_state, inert, is_over
from fairlead.control.store import datasets, events, generations, jobs, ledger, memory, neighbours, tenants
from fairlead.control.store.engine import Store
from fairlead.control.stragglers import staying
from fairlead.scheduling.market.policy import DEFAULTS
from fairlead.scheduling.round_memory import plain, promises, recalled
from fairlead.scheduling.state import (
    AS_DIALLED,
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

REMEMBER_S = 60.0  # so often the policy's memory is stored even if no promise in it changed


@dataclass(frozen=True, slots=True)
class RoundInput:
    """The scheduler's state together with what is needed to store its decisions."""

    cluster: ClusterState
    jobs: Mapping[str, Job]
    generations: Mapping[str, list[Generation]]
    facts: Mapping[str, Mapping[str, WorkerFact]]
    spendings: Mapping[str, Spending] = field(default_factory=dict)  # of the tenants that have a budget
    poison: Mapping[str, Exception] = field(default_factory=dict)  # jobs whose own facts cannot be understood

    def forgetful(self) -> RoundInput:
        """The same, but the policy remembers nothing."""
        return replace(self, cluster=replace(self.cluster, memory={}))

    def without(self, some: Collection[str]) -> RoundInput:
        """The same, but these jobs only hold what they hold."""
        if not some:
            return self
        inerts = {name: inert(self.jobs[name], self.generations.get(name, ()), self.facts.get(name, {}))
                  for name in some if name in self.jobs}  # fmt: skip
        kept = (inerts.get(one.id, one) for one in self.cluster.jobs)
        return replace(self, cluster=replace(self.cluster, jobs=tuple(one for one in kept if one is not None)))


@dataclass
class Outlook:
    """What the last round said, for those who ask; derived anew after a restart."""

    holds: Mapping[str, Hold]
    entitlements: Mapping[str, float]
    decided_s: float = 0.0
    memory: Mapping[str, Any] | None = None  # the policy's; None: as it was stored
    stored_s: float = 0.0  # when it was last stored

    def forgets_less(self, decided: Round, now_s: float) -> bool:
        """Whether the memory of this round has to be stored: much in it changes all the time and may be a bit old."""
        old = now_s - self.stored_s >= REMEMBER_S
        return old or self.memory is None or promises(self.memory) != promises(decided.memory)


def _recalled(connection: Connection) -> dict[str, Any]:
    """What the policy remembered when it was stored; nothing, if no sense can be made of it."""
    try:
        return recalled(memory.load(connection))
    except Exception as error:
        if stays_what_it_is(error):
            raise
        told("recalling what the policy remembers", error)
        return {}


async def read_state(
    store: Store, now_s: float, nodes: Mapping[str, Node], known: Gangs, undecided: frozenset[str],
    remembers: Mapping[str, Any] | None = None, curves: Callable[[Job], Pace | None] = lambda job: None,
    think: Callable[[Sequence[Job]], Awaitable[None]] | None = None, sharing: Sharing = AS_DIALLED,
    aside: Collection[str] = (),
) -> RoundInput:  # fmt: skip
    """All that this round depends on, read at one moment; ``remembers``: the last round's memory, if it is known.

    ``think`` has a moment for the jobs that were read before their curves are asked for. Those ``aside`` only hold what
    they hold, and so do those whose own facts cannot be understood.
    """

    def work(
        connection: Connection,
    ) -> tuple[
        list[Job], dict[str, list[Generation]], list[Tenant], dict[str, float], dict[str, Any], dict[str, Spending]
    ]:
        active = jobs.active(connection)
        busy = {job.id for job in active if job.phase is not JobPhase.QUEUED}
        teams = tenants.all(connection)
        return (
            active,
            generations.current(connection, busy),
            teams,
            ledger.attained(connection, now_s, DEFAULTS.under(sharing).forget_s),
            _recalled(connection) if remembers is None else dict(remembers),
            spendings(connection, teams, now_s),
        )

    active, live, teams, attained, remembered, budgets = await store.read(work)
    reading = [job for job in active if "data" in job.facts] if any(known.resident.values()) else []
    labels = await store.read(lambda connection: _labels(connection, reading)) if reading else {}
    if think is not None:
        await think(active)
    facts = {job: dict(workers) for job, workers in known.workers.items() if workers}
    known.back_off(active, now_s)
    cooling = {job for job, until_s in known.cooling_until_s.items() if until_s > now_s}
    unsure = {job for job, of_job in live.items() if any(m.node in undecided for g in of_job for m in g.members)}
    jobs_now = [job for job in active if job.id not in cooling or job.phase is not JobPhase.QUEUED]
    poison = _damaged(active, live)
    held = {*aside, *poison}
    cluster = cluster_state(
        now_s, list(nodes.values()), teams, attained, jobs_now, live, facts, frozenset(cooling | unsure), remembered,
        used_up_by(teams, budgets),
        {name: known.used.facts(name) for name in facts}, curves, held, poison,
    )  # fmt: skip
    near = tuple(_near_data(job, known.resident, labels, poison) for job in cluster.jobs)
    cluster = replace(cluster, colocation=known.company.table or None, jobs=near, sharing=sharing)
    return RoundInput(cluster, {job.id: job for job in active}, live, facts, budgets, poison)


def _damaged(active: Sequence[Job], live: Mapping[str, Sequence[Generation]]) -> dict[str, Exception]:
    """Jobs of which something cannot be read that a decision depends on; about one that ends there is none."""
    found: dict[str, Exception] = {}
    for job in active:
        if is_over(job):
            continue
        if jobs.DAMAGED in job.facts:
            found[job.id] = ValueError(f"cannot be read: {', '.join(job.facts[jobs.DAMAGED])}")
        elif any(not generation.members for generation in live.get(job.id, ())):
            found[job.id] = ValueError("its generation cannot be read")
    return found


def _near_data(job: JobState, resident: Resident, labels: Labels, poison: dict[str, Exception]) -> JobState:
    try:
        return near_data([job], resident, labels)[0]
    except Exception as error:  # noqa: BLE001 (one job's edge: it runs wherever it may)
        poison[job.id] = error
        return job


def _labels(connection: Connection, reading: Sequence[Job]) -> Labels:
    """Under which labels the nodes hold what these jobs read; who names no version, as was possible once, reads the
    newest."""
    wanted: dict[str, set[str]] = {}
    for job in reading:
        wanted.setdefault(job.tenant, set()).update(job.facts["data"])
    found: dict[tuple[str, str], Sequence[str]] = {}
    for tenant, refs in wanted.items():
        names = {ref.partition("@")[0] for ref in refs}
        for (name, version), labels in datasets.labels(connection, tenant, names).items():
            found[tenant, name] = found[tenant, f"{name}@{version}"] = labels
    return found


def seated(state: RoundInput, known: Gangs) -> None:
    """Note who sits beside whom from now on."""
    paces = {node.name: node.speed for node in state.cluster.nodes}
    known.company.sit(sittings(state.cluster.jobs, state.jobs, state.generations, paces), state.jobs.keys())


async def learn(store: Store, known: Gangs, now_s: float) -> None:
    """Look at how far each has come beside the others; what that says of their classes is kept."""
    lost = known.company.look(now_s)
    if lost:
        await store.write(lambda connection: neighbours.note(connection, lost, now_s))


def apply_round(
    connection: Connection, state: RoundInput, decided: Round, *, remember: bool = True,
    failed: dict[str, Exception] | None = None,
) -> set[str]:  # fmt: skip
    """Store the decisions that still hold; returns the jobs that have something to carry out now.

    A decision that cannot be stored is left out, and its job is ``failed``; without that it is raised.
    """
    over = {job.id for job in state.jobs.values() if is_over(job)}
    devices = Devices(state.cluster.nodes, state.facts, state.generations, over)
    reading = {job.id: job for job in state.cluster.jobs if "data_bytes" in job.facts}
    seats = any(isinstance(decision, Start | Resize) for decision in decided.decisions)
    ports = generations.ports_in_use(connection) if seats else set()
    changed: set[str] = set()
    for decision in decided.decisions:
        if isinstance(decision, Hold):
            continue
        savepoint = connection.begin_nested()
        try:
            if _apply(connection, state, devices, ports, decision, reading.get(decision.job)):
                changed.add(decision.job)
        except Exception as error:
            if failed is None or stays_what_it_is(error):
                raise
            savepoint.rollback()
            failed[decision.job] = error
        else:
            savepoint.commit()
    tell(connection, state.spendings.values(), state.cluster.now_s)
    tell_fairness(connection, state.cluster.memory, decided.memory, state.cluster.now_s)
    if remember:
        memory.save(connection, plain(decided.memory))
    return changed


def _apply(
    connection: Connection, state: RoundInput, devices: Devices, ports: set[int], decision: Decision,
    reads: JobState | None,
) -> bool:  # fmt: skip
    match decision:
        case Start(job=job, seats=seats, reason=reason) | Resize(job=job, seats=seats, reason=reason):
            why = reason if reads is None else with_data(reason, reads, seats)
            return _new_generation(connection, state, devices, ports, job, seats, why)
        case Preempt(job=job, reason=reason):
            return _preempt(connection, state, job, reason)
        case _:
            return False


def _new_generation(
    connection: Connection, state: RoundInput, devices: Devices, ports: set[int], job_id: str, seats: tuple[str, ...],
    reason: Reason,
) -> bool:  # fmt: skip
    job = _unchanged(connection, state, job_id)
    if job is None:
        return False
    live = state.generations.get(job_id, [])
    workers = state.facts.get(job_id, {})
    newest = live[-1] if live else None
    survivors = tuple(m for m in newest.members if m.worker in workers and workers[m.worker].alive) if newest else ()
    survivors = staying(survivors, workers, reason)
    if newest is not None and not job.training:
        return _preempt(connection, state, job_id, reason)  # a command cannot change its seats, it starts over
    if newest is not None and newest.broken_s is None and same_seats(seats, nodes_of(survivors)):
        return False
    placed = devices.place(seats, survivors, job.next_worker)
    if placed is None:
        return False  # a device that was promised is not free yet: the next round sees it
    members, next_worker = placed
    number = job.generation + 1
    now_s = state.cluster.now_s
    generations.insert(
        connection,
        Generation(job_id, number, GenerationPhase.PLANNED, members, reason.code, reason.text, created_s=now_s),
        ports,
    )
    changes: dict[str, Any] = {"generation": number, "next_worker": next_worker}
    if job.phase is JobPhase.QUEUED:
        changes |= {"phase": JobPhase.STARTING, "since_s": now_s}
    elif newest is not None and newest.broken_s is None:
        changes["resizes"] = job.resizes + 1
    jobs.update(connection, job_id, **changes)
    kind = "job-starting" if job.phase is JobPhase.QUEUED else "job-resizing"
    _decided(connection, job, kind, reason, now_s, seats=list(seats), generation=number)
    return True


def _preempt(connection: Connection, state: RoundInput, job_id: str, reason: Reason) -> bool:
    job = _unchanged(connection, state, job_id)
    if job is None or job.phase not in (JobPhase.RUNNING, JobPhase.STARTING):
        return False
    now_s = state.cluster.now_s
    jobs.update(connection, job_id, **stop_changes(JobPhase.QUEUED, "preempted", None, now_s))
    _decided(connection, job, "job-preempted", reason, now_s)
    return True


def _unchanged(connection: Connection, state: RoundInput, job_id: str) -> Job | None:
    """The job, if nobody has moved it on since the round read it."""
    read, stored = state.jobs.get(job_id), jobs.get(connection, job_id)
    if read is None or stored is None or (stored.phase, stored.generation) != (read.phase, read.generation):
        return None
    return stored


def _decided(connection: Connection, job: Job, kind: str, reason: Reason, now_s: float, **facts: object) -> None:
    events.append(connection, time_s=now_s, kind=kind, text=f"{job.id}: {reason.text}", tenant=job.tenant, job=job.id,
                  facts={**facts, "reason": reason.code})  # fmt: skip
