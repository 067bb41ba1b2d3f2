"""Carries out the next action for a gang: first the store, then the side effect, so that a crash in between is
repaired."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from sqlalchemy import Connection

from fairlead import wire
from fairlead.agent.protocol import Backend, LaunchOrder, NodeAction
from fairlead.cluster import Gang, Node
from fairlead.control.accounting import ledger
from fairlead.control.plans.gang_plans import Plans
from fairlead.control.reconcile import gang_actions, worker_deaths
from fairlead.control.reconcile.cluster_state import batch_shares, rank_environment
from fairlead.control.reconcile.failpoints import failpoint
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.gang_state_machine import GangView, WorkerFact
from fairlead.control.reconcile.next_generation import BETTER_PLAN
from fairlead.control.reconcile.rendezvous import rendezvous_of
from fairlead.control.reconcile.worker_specs import why_unsendable
from fairlead.control.records import ENDED, Generation, GenerationPhase, Job, JobPhase, stop_changes
from fairlead.control.store import events, generations, jobs
from fairlead.control.store.engine import Store
from fairlead.errors import FairleadError, Refused
from fairlead.recovery import silence

START_WITHIN_S = 5.0
_ENDS = {JobPhase.SUCCEEDED: "succeeded", JobPhase.FAILED: "failed", JobPhase.CANCELLED: "is cancelled"}
FAILED_START_PAUSE_S = 5.0  # between a generation that could not come up and the next one


SecretsFor = Callable[[Connection, Job], Mapping[str, str]]


def no_secrets(connection: Connection, job: Job) -> Mapping[str, str]:
    """For platforms without secrets."""
    return {}


class GangExecutor:
    """Executes the actions of each job one after the other."""

    def __init__(
        self,
        store: Store,
        backend: Backend,
        known: GangRegistry,
        order_for: Callable[[Connection, Job], wire.WorkerSpec],
        nodes: Callable[[], Mapping[str, Node]],
        clock: Callable[[], float],
        secrets_for: SecretsFor = no_secrets,
        plans: Plans | None = None,
    ) -> None:
        self._store = store
        self._backend = backend
        self._known = known
        self._order_for = order_for
        self._nodes = nodes
        self._clock = clock
        self._secrets_for = secrets_for
        self._plans = plans or Plans(store, nodes, clock)

    async def execute(self, action: gang_actions.Action, view: GangView) -> None:
        """Carry out one action. A later look at the facts repairs whatever this raises."""
        job = view.job
        match action:
            case gang_actions.WakeNodes(generation, nodes):
                for node in nodes:
                    await self._backend.node(node, NodeAction.WAKE)
                self._record_command(job, f"wake:{generation.number}")
            case gang_actions.Start(generation):
                await self._start(job, generation, view.generations[-2] if len(view.generations) > 1 else None)
            case gang_actions.TellLeave(generation, exits, snapshot):
                message = wire.Leave(generation.number, snapshot=snapshot, exits=list(exits))
                self._known.record_resume(job.id, generation.number)  # it may have refused to join a later one
                await self._send(job, generation, message, mark=f"leave:{generation.number}", point="leave-told")
            case gang_actions.BeginJoin(generation, former):
                await self._begin_join(job, generation, former)
            case gang_actions.TellJoin(generation, breaks):
                await self._tell_join(job, generation, breaks)
            case gang_actions.MarkRunning(generation):
                await self._mark_running(job, generation)
            case gang_actions.MarkBroken(generation, lost):
                await self._mark_broken(job, generation, lost)
            case gang_actions.Abandon(generation, why):
                former = view.generations[-2] if len(view.generations) > 1 else None
                await self._abandon(job, generation, why, former)
            case gang_actions.BeginStop(JobPhase.QUEUED, "worker-lost") if view.generations:
                await self._give_up(job, view.generations[-1])
            case gang_actions.BeginStop(then, outcome, message, at_s):
                await self._begin_stop(job, then, outcome, message, at_s)
            case gang_actions.StopWorkers(workers, grace_s):
                await self._backend.stop(job.id, self._places(job, workers), grace_s)
                self._record_command(job, "stop")
                failpoint("stop-told")
            case gang_actions.ReleaseWorkers(workers, forget_memory):
                await self._release(job, workers, forget_memory=forget_memory)
            case gang_actions.Conclude(then, outcome, at_s):
                ended = job if at_s is None else replace(job, since_s=min(self._clock(), at_s))
                await self._conclude(ended, view.generations, then, outcome)

    # ------------------------------------------------------------ bringing a generation up

    async def _start(self, job: Job, generation: Generation, former: Generation | None) -> None:
        order = await self._order(job, generation)
        if isinstance(order, str):
            await self._begin_stop(job, JobPhase.FAILED, "failed", order)
            return
        known = self._known.workers_of(job.id)
        for member in generation.members:
            known.setdefault(member.worker, WorkerFact(member.node, "asked", device=member.device))
        told = self._known.commands_sent.get(job.id, set())
        told.discard(f"join:{generation.number}")  # an earlier call to join was lost with its worker
        refused = await self._backend.start(_gang(job, generation), order, START_WITHIN_S)
        if refused is not None:
            await self._undo_start(job, generation, former, refused.why)
            return
        for member in generation.members:
            if (fact := known.get(member.worker)) is not None and fact.phase == "asked":
                known[member.worker] = replace(fact, phase="starting")
        failpoint("launched")

    async def _order(self, job: Job, generation: Generation) -> LaunchOrder | str:
        """The order that starts the workers of this generation, or why there can be none."""

        def read(connection: Connection) -> tuple[wire.WorkerSpec, Mapping[str, str]]:
            return self._order_for(connection, job), self._secrets_for(connection, job)

        try:
            worker, secrets = await self._store.read(read)
        except Refused as error:
            return f"{error.message}; {error.fix}"
        if why := why_unsendable(worker):
            return why
        if looks := await self._plans.profiling_worker(job, generation):
            worker = msgspec.structs.replace(worker, looks=looks)
        environment = {} if job.training else rank_environment(generation.members, rendezvous_of(generation))
        return LaunchOrder(worker, environment, secrets)

    async def _undo_start(self, job: Job, generation: Generation, former: Generation | None, why: str) -> None:
        """A node refused the start: end what other nodes have started, and wait for another decision."""
        staying = set() if former is None else {member.worker for member in former.members}
        new = {member.worker: member.node for member in generation.members if member.worker not in staying}
        await self._backend.release(job.id, new)
        known = self._known.workers_of(job.id)
        for worker in new:
            known.pop(worker, None)
        told = f"not all workers could be started: {why}"
        if former is not None:
            await self._abandon(job, generation, told, former)
        else:
            await self._begin_stop(job, JobPhase.QUEUED, "abandoned", told)
        self._known.cooling_until_s[job.id] = self._clock() + FAILED_START_PAUSE_S

    async def _begin_join(self, job: Job, generation: Generation, former: Generation | None) -> None:
        try:
            met = await self._plans.complete_generation(job, generation)
        except Refused as error:
            await self._begin_stop(job, JobPhase.FAILED, "failed", error.message)
            return
        now_s = self._clock()
        cpu_s = self._known.cpu.take_usage(former) if former is not None else {}

        def work(connection: Connection) -> None:
            if former is not None:
                usual = "replanned" if generation.reason_code == BETTER_PLAN else "resized"
                outcome = "worker-lost" if former.broken_s is not None else usual
                ledger.meter_ended_generation(connection, job, former, self._nodes(), now_s, cpu_s)
                ledger.charge_newcomers(connection, job, generation, former, self._nodes(), now_s)
                generations.update(connection, job.id, former.number, phase=GenerationPhase.ENDED, ended_s=now_s,
                                   outcome=outcome)  # fmt: skip
            else:  # the devices that the plan leaves idle were held until now
                gone = tuple(member for member in generation.members if member.worker not in met.workers)
                ledger.charge_newcomers(connection, job, replace(generation, members=gone), None, self._nodes(), now_s)
            metered_s = now_s if former is not None else generation.created_s
            generations.update(connection, job.id, generation.number, phase=GenerationPhase.JOINING,
                               metered_s=metered_s, members=met.members, plan=met.plan,
                               rendezvous=met.rendezvous)  # fmt: skip

        await self._store.write(work)
        failpoint("join-stored")

    async def _tell_join(self, job: Job, generation: Generation, breaks: int) -> None:
        plan, point = generation.plan or {}, rendezvous_of(generation)
        usual_step_s = job.batch_size / job.samples_per_s if job.samples_per_s else 0.0
        usual_step_s = max(usual_step_s, float(plan.get("step_s", 0.0)))
        spec = await self._store.read(lambda connection: jobs.stored_spec(connection, job.id))
        message = wire.Join(
            generation=generation.number,
            ranks={member.worker: member.rank for member in generation.at_work},
            shares=batch_shares(generation.at_work, self._nodes()),
            silence_s=silence.limit_s(usual_step_s, spec.get("silence_timeout")),
            plan=plan.get("plan"),
            rendezvous=point.name,
            network=wire.Network(point.address, point.port, point.secret),
            careful_from=worker_deaths.last_step(job),
            breaks=breaks,
        )
        await self._send(job, generation, message, mark=f"join:{generation.number}", point="join-told")

    async def _send(self, job: Job, generation: Generation, message: wire.ToWorker, *, mark: str, point: str) -> None:
        self._record_command(job, mark)  # first, because a resume that comes meanwhile removes the mark again
        try:
            await self._backend.tell(job.id, _gang(job, generation).nodes, message)
        except FairleadError:
            self._known.commands_sent.get(job.id, set()).discard(mark)
            raise
        failpoint(point)

    async def _mark_running(self, job: Job, generation: Generation) -> None:
        now_s = self._clock()

        def work(connection: Connection) -> None:
            stored = _unchanged_job(connection, job)
            if stored is None:
                return
            generations.update(connection, job.id, generation.number, phase=GenerationPhase.RUNNING, running_s=now_s)
            changes: dict[str, Any] = {"phase": JobPhase.RUNNING, "since_s": now_s}
            if stored.started_s is None:
                changes["started_s"] = now_s
            jobs.update(connection, job.id, **changes)
            size = len(generation.members)
            work = len(generation.at_work)
            text = f"{job.id} runs on {size} worker{'s' if size > 1 else ''}"  # the decision's event says why
            if work < size:
                text = f"{job.id} runs on {work} of {size} workers, the others are idle,"
            text += f" as {generation.plan['id']}" if generation.plan else ""
            _event(connection, job, "generation-running", text, now_s, generation=generation.number, workers=size,
                   reason=generation.reason_code)  # fmt: skip

        await self._store.write(work)
        failpoint("running-stored")

    # ------------------------------------------------------------ failures

    async def _mark_broken(self, job: Job, generation: Generation, lost: Sequence[str]) -> None:
        now_s, facts = self._clock(), dict(self._known.workers_of(job.id))

        def work(connection: Connection) -> float:
            moved = not _unchanged_job(connection, job)
            return (
                0.0
                if moved
                else worker_deaths.record_broken_generation(connection, job.id, generation, lost, facts, now_s)
            )

        if after_s := await self._store.write(work):
            self._known.cooling_until_s[job.id] = now_s + after_s
        self._plans.forget(job.id)
        failpoint("broken-stored")

    async def _abandon(self, job: Job, generation: Generation, why: str, former: Generation | None = None) -> None:
        now_s, facts = self._clock(), dict(self._known.workers_of(job.id))

        def work(connection: Connection) -> float:
            if former is not None:
                ledger.charge_newcomers(connection, job, generation, former, self._nodes(), now_s)
            generations.update(connection, job.id, generation.number, phase=GenerationPhase.ENDED, ended_s=now_s,
                               outcome="abandoned")  # fmt: skip
            _event(connection, job, "generation-abandoned", f"{job.id}: {why}", now_s, generation=generation.number)
            if former is None or not _unchanged_job(connection, job):
                return 0.0
            return worker_deaths.record_failed_newcomers(connection, job.id, generation, former, facts, now_s)

        after_s = await self._store.write(work)
        self._known.cooling_until_s[job.id] = now_s + max(FAILED_START_PAUSE_S, after_s)
        told = self._known.commands_sent.get(job.id, set())
        told -= {mark for mark in told if mark.startswith("leave:")}

    async def _give_up(self, job: Job, generation: Generation) -> None:
        """No worker of this generation is left, or none could start."""
        now_s, facts = self._clock(), dict(self._known.workers_of(job.id))

        def work(connection: Connection) -> None:
            if _unchanged_job(connection, job):
                worker_deaths.record_lost_generation(connection, job.id, generation, facts, now_s)

        await self._store.write(work)
        failpoint("stop-stored")

    async def _begin_stop(
        self, job: Job, then: JobPhase, outcome: str, message: str | None, at_s: float | None = None
    ) -> None:  # fmt: skip
        now_s = self._clock()
        since_s = now_s if at_s is None else min(now_s, at_s)

        def work(connection: Connection) -> None:
            if _unchanged_job(connection, job):
                jobs.update(connection, job.id, **stop_changes(then, outcome, message, since_s))

        await self._store.write(work)
        failpoint("stop-stored")

    # ------------------------------------------------------------ releasing devices

    async def _release(self, job: Job, workers: tuple[str, ...], *, forget_memory: bool) -> None:
        await self._backend.release(job.id, self._places(job, workers), forget_memory=forget_memory)
        known = self._known.workers_of(job.id)
        for worker in workers:
            known.pop(worker, None)
        failpoint("released")

    async def _conclude(self, job: Job, live: Sequence[Generation], then: JobPhase, outcome: str) -> None:
        now_s = self._clock()
        cpu_s = {generation.number: self._known.cpu.take_usage(generation) for generation in live}
        until_s = self._known.held_until_s(job, live, outcome, now_s)

        def work(connection: Connection) -> bool:
            stored = _unchanged_job(connection, job)
            if stored is None:
                return False
            for generation in live:
                ledger.meter_ended_generation(
                    connection, job, generation, self._nodes(), until_s, cpu_s[generation.number]
                )
                generations.update(connection, job.id, generation.number, phase=GenerationPhase.ENDED, ended_s=now_s,
                                   outcome=outcome)  # fmt: skip
            changes: dict[str, Any] = {"phase": then, "since_s": now_s, "then": None, "outcome": None}
            if then in ENDED:
                changes["finished_s"] = min(now_s, job.since_s) if outcome in ("finished", "failed") else now_s
            if then is JobPhase.SUCCEEDED:
                changes["message"] = None  # the events tell of failures on the way
            if outcome == "preempted":
                changes["preemptions"] = stored.preemptions + 1
            jobs.update(connection, job.id, **changes)
            why = f": {stored.message}" if stored.message and then is JobPhase.FAILED else ""
            became = "goes back into the queue" if then is JobPhase.QUEUED else f"{_ENDS[then]}{why}"
            _event(connection, job, f"job-{then}", f"{job.id} {became}", now_s, outcome=outcome)
            return True

        if not await self._store.write(work):
            return
        failpoint("concluded")
        self._known.commands_sent.pop(job.id, None)
        self._known.exit_times.pop(job.id, None)
        if outcome != "abandoned":  # a failed growth must not delay the next start, a failed start must
            self._known.cooling_until_s.pop(job.id, None)
        if then in ENDED and not self._known.workers.get(job.id):
            self._known.forget(job.id)

    def _places(self, job: Job, workers: tuple[str, ...]) -> dict[str, str]:
        known = self._known.workers_of(job.id)
        return {worker: known[worker].node for worker in workers if worker in known}

    def _record_command(self, job: Job, what: str) -> None:
        """Record a command that was sent to the gang; drop those of generations long past."""
        told = self._known.commands_sent.get(job.id, set())
        oldest = job.generation - 2
        self._known.commands_sent[job.id] = {what} | {mark for mark in told if _generation_of(mark, oldest) >= oldest}


def _unchanged_job(connection: Connection, job: Job) -> Job | None:
    """The job as it is stored now; None if its course changed since it was looked at.

    A cancel, a failure or a preemption stands. Counters in the row are counted on from the returned one.
    """
    stored = jobs.get(connection, job.id)
    if stored is None or (stored.phase, stored.then, stored.generation) != (job.phase, job.then, job.generation):
        return None
    return stored


def _generation_of(mark: str, otherwise: int) -> int:
    """The generation number in a mark such as ``leave:3``."""
    number = mark.partition(":")[2]
    return int(number) if number else otherwise


def _gang(job: Job, generation: Generation) -> Gang:
    return Gang(job.id, job.tenant, generation.number, generation.members, job.demand)


def _event(connection: Connection, job: Job, kind: str, text: str, now_s: float, **facts: object) -> None:
    events.append(connection, time_s=now_s, kind=kind, text=text, tenant=job.tenant, job=job.id, facts=facts)
