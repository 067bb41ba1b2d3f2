"""Chooses the plans of the platform's gangs, reviews them while they run, and provides speed curves to the
scheduler."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast

from sqlalchemy import Connection

from fairlead import wire
from fairlead.cluster import Node, Placement
from fairlead.control.plans.default_plans import default_plan, needs_profile, requested_plan
from fairlead.control.plans.gang_hardware import Machine, gang_hardware
from fairlead.control.plans.model_profiles import model_key, refusal
from fairlead.control.plans.plan_cache import PlanCache
from fairlead.control.plans.plan_questions import (
    ChooseQuestion,
    ChosenPlan,
    GlanceQuestion,
    Model,
    Question,
    ReviewQuestion,
    stored_choice,
)
from fairlead.control.plans.planner_process import Planner, PlannerFailed, PlannerProcess
from fairlead.control.plans.replanning import Review
from fairlead.control.plans.speed_curves import CalibratedCurve, SpeedCurves
from fairlead.control.reconcile.cluster_state import all_members_train, restart_cost_s
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.reconcile.internal_errors import Backoff, must_propagate, report_error
from fairlead.control.reconcile.next_generation import BETTER_PLAN, SeatedGang, store_generation, with_plan
from fairlead.control.records import Generation, GenerationPhase, Job, JobPhase, KnownModel
from fairlead.control.store import events, generations, jobs, known_models, lineage
from fairlead.control.store.engine import Store
from fairlead.errors import Refused, Unavailable
from fairlead.planning.model_corrections import is_predictable
from fairlead.planning.plan_choice import MARGIN, MODEL_PARALLEL, UNMEASURED, Choice
from fairlead.planning.profiles import Hardware
from fairlead.profiling.profile_cache import differs_from_profile
from fairlead.scheduling.state import Reason

T = TypeVar("T")

ROUND_WAIT_S = 0.3  # how long a round waits for the planner, for all gangs together
WAIT_S = 5.0  # how long a single gang waits for the planner outside a round
REVIEW_EVERY_S = 2.0  # how often running gangs are reviewed
MOST_REVIEWED = 20  # gangs per review
MOST_WORKERS = 64  # a larger gang is not planned for and runs as replicas

UNREQUESTED = ("planner", "default")
"""Values of ``chosen`` in plans that nobody requested."""

MOST_TRIES = 5
"""How often the planner may fail with a model before a plan that only it can make is refused."""


class Calibrator(Protocol):
    """Provides the measurements of the machine."""

    def machine(self) -> Machine: ...

    def doubt(self) -> None:
        """The machine seems to have changed: measure it again when there is time."""


class NoCalibrator:
    """No measurements, now or later."""

    def machine(self) -> Machine:
        return Machine()

    def doubt(self) -> None:
        return None


class Plans:
    """The leader's knowledge of models: in memory what jobs on their way need, the rest in the store."""

    def __init__(
        self, store: Store, nodes: Callable[[], Mapping[str, Node]], clock: Callable[[], float],
        calibrator: Calibrator | None = None, planner: Planner | None = None,
    ) -> None:  # fmt: skip
        self._store, self._nodes, self._clock = store, nodes, clock
        self._calibrator: Calibrator = calibrator or NoCalibrator()
        self._known: dict[tuple[str, str], KnownModel | None] = {}
        self._reviewed_s = 0.0
        self._reviewed = ""  # the job that was reviewed last
        self._model_keys: dict[str, tuple[str, str]] = {}  # by job: tenant and key
        self._computing: dict[str, tuple[int, float]] = {}  # by job: generation and seconds
        self._glances: dict[str, wire.Ready] = {}  # by job: first measurements of an unknown model
        self._planner: Planner = PlanCache(planner or PlannerProcess())
        self._backoff = Backoff(clock)  # of models with which the planner failed
        self._curves = SpeedCurves(planner=self._planner)

    # ------------------------------------------------------------ known models

    async def known(self, job: Job) -> KnownModel | None:
        """What is known of the job's model."""
        place = self._model_keys[job.id] = (job.tenant, model_key(job))
        if place not in self._known:
            self._known[place] = await self._store.read(lambda connection: known_models.get(connection, *place))
        return self._known[place]

    def forget(self, job: str) -> None:
        """Something about the job's model may have been stored: read it again when it is needed."""
        self._known.pop(self._model_keys.get(job, ("", "")), None)

    def record_report(self, job: str, said: wire.Progress | wire.Ready) -> None:
        """Remember how long a replica computes before each exchange, scaled to equal shares of the batch.

        And, before the first exchange, the measurements of its first passes.
        """
        if isinstance(said, wire.Ready):
            if said.glance is not None:
                self._glances[job] = said
        elif said.compute_s > 0 and said.share > 0:
            self._computing[job] = said.generation, said.compute_s / said.share

    def _compute_s(self, generation: Generation) -> float | None:
        number, seconds = self._computing.get(generation.job, (0, 0.0))
        return seconds / len(generation.at_work) if number == generation.number else None

    async def profiling_worker(self, job: Job, generation: Generation) -> str:
        """The worker that has to profile the model; empty when the model is known, or when there is nothing to plan.

        A model whose profiling failed is profiled again: the cause may be gone.
        """
        if not job.training or job.max_workers == 1:
            return ""
        self._planner.warm()  # it will be asked when the workers are up
        known = await self.known(job)
        if known is not None and known.profile is not None:
            return ""
        return min(generation.members, key=lambda member: member.rank).worker

    # ------------------------------------------------------------ choosing

    async def choose_plans(
        self, gangs: Mapping[str, SeatedGang], failed: dict[str, Exception]
    ) -> dict[str, SeatedGang]:
        """Choose the plans of gangs that are given devices: all are asked for at once, with a short wait.

        A gang gets no plan yet if a worker has to profile the model first, or if only the planner can make the plan and
        has no answer. Puts errors into ``failed`` by job.
        """
        found = await asyncio.gather(*map(self._choose_quickly, gangs.values()), return_exceptions=True)
        with_plans: dict[str, SeatedGang] = {}
        for name, one in zip(gangs, found, strict=True):
            if isinstance(one, BaseException):
                if not isinstance(one, Exception) or must_propagate(one):
                    raise one
                failed[name] = one
            else:
                with_plans[name] = replace(gangs[name], choice=one)
        return with_plans

    async def _choose_quickly(self, gang: SeatedGang) -> ChosenPlan | None:
        try:
            return await self._choice(gang.job, gang.members, ROUND_WAIT_S, may_profile=True)
        except Unavailable:
            return None

    async def complete_generation(self, job: Job, generation: Generation) -> Generation:
        """The stored generation, before its ranks meet; with a plan if the model had to be profiled first, or if its
        code named another plan when it was loaded. Raises :class:`Refused` if a requested plan can never run."""
        own = generation.plan is not None and generation.plan.get("chosen") in UNREQUESTED
        if not job.training or (generation.plan is not None and not (own and requested_plan(job) != "auto")):
            return generation
        choice = await self._choice(job, generation.members, WAIT_S, may_profile=False)
        if choice is not None and choice.refused:
            raise Refused(choice.refused, fix="leave plan out")
        return with_plan(generation, job, choice, self._nodes())

    async def _choice(self, job: Job, members: Placement, within_s: float, *, may_profile: bool) -> ChosenPlan | None:
        if not job.training:
            return ChosenPlan(None)
        if "again" in job.facts and (plan := await self._original_plan(job)) is not None:
            return ChosenPlan(plan)
        known, hardware = await self.known(job), self._hardware(job, members)
        question = self._question(job, known, hardware)
        if question is None:
            first = may_profile and needs_profile(job, known, hardware, len(members))
            return None if first else default_plan(job, len(members), known, hardware)
        try:
            found = await self._ask(job, question, ChosenPlan, within_s)
        except PlannerFailed as error:
            if (
                requested_plan(job) in MODEL_PARALLEL
                and self._backoff.failure_count((job.tenant, model_key(job))) < MOST_TRIES
            ):
                raise Unavailable(f"{job.id} waits for its plan {requested_plan(job)}: {error}") from None
            return default_plan(job, len(members), known, hardware, str(error))
        return replace(found, refused=refusal(requested_plan(job), found.refused)) if found.refused else found

    def _question(self, job: Job, known: KnownModel | None, hardware: Hardware | None) -> Question | None:
        """What to ask the planner; None where it has nothing to go by."""
        auto, ready = requested_plan(job) == "auto", self._glances.get(job.id)
        margin = MARGIN if self._calibrator.machine().measured_here else UNMEASURED
        if hardware is None:
            return None
        if known is None:
            return GlanceQuestion(ready, hardware, margin) if ready is not None and auto else None
        if known.profile is None or (auto and not is_predictable(known.seen)):
            return None
        return ChooseQuestion(_model(known), hardware, requested_plan(job), margin)

    async def _ask(self, job: Job, question: Question, kind: type[T], within_s: float = WAIT_S) -> T:
        """The planner's answer; raises :class:`PlannerFailed`. After a failure the planner is not asked about this
        model for a while."""
        model = job.tenant, model_key(job)
        if self._backoff.is_waiting(model):
            raise PlannerFailed("the planner failed with this model a moment ago")
        try:
            asked = asyncio.wrap_future(self._planner.ask(job.tenant, question, kind))
            async with asyncio.timeout(within_s):
                found = cast(T, await asked)
        except TimeoutError:
            raise PlannerFailed("the planner is busy") from None
        except PlannerFailed as error:
            tries, mark, now_s = (
                self._backoff.record_failure(model),
                report_error("planning", error, job=job.id),
                self._clock(),
            )
            text = f"{job.id} goes on without the planner: {error} (error {mark})"
            await self._store.write(lambda connection: events.append(
                connection, time_s=now_s, kind="planner-failed", text=text, tenant=job.tenant, job=job.id,
                facts={"tries": tries},
            ))  # fmt: skip
            raise
        self._backoff.record_success(model)
        return found

    async def _original_plan(self, job: Job) -> dict[str, Any] | None:
        """Of a rerun: the plan of the original, if one plan ran from beginning to end."""
        origin = await self._store.read(lambda connection: lineage.get(connection, job.id))
        plan = None if origin is None or origin.again is None else origin.again.get("plan")
        kept = ("id", "kind", "plan", "workers_used")
        reason = f"as in {job.facts['again']}, which this job repeats"
        return None if plan is None else {**{name: plan[name] for name in kept}, "reason": reason, "chosen": "repeated"}

    def _hardware(self, job: Job, members: Placement) -> Hardware | None:
        """The hardware of these members by rank; None where the planner does not know it."""
        nodes, ranked = self._nodes(), sorted(members, key=lambda member: member.rank)
        seats = [nodes[member.node] for member in ranked if member.node in nodes]
        if len(seats) < len(ranked) or len(ranked) > MOST_WORKERS:
            return None
        return gang_hardware(seats, job.demand, self._calibrator.machine())

    # ------------------------------------------------------------ reviewing

    async def review(self, workers: Callable[[str], Mapping[str, WorkerFact]], live: Collection[str]) -> set[str]:
        """Learn from running gangs, and start a new generation where another plan is better. Reviews a few gangs each
        time."""
        now_s = self._clock()
        if 0.0 <= now_s - self._reviewed_s < REVIEW_EVERY_S:
            return set()
        self._reviewed_s = now_s
        turn = self._next_to_review(live)
        pairs = await self._store.read(lambda connection: _running(connection, turn))
        changed: set[str] = set()
        for job, generation in pairs:
            if "again" in job.facts:
                continue  # a rerun repeats its original, faster or not
            known, hardware = await self.known(job), self._hardware(job, generation.members)
            if known is None or known.profile is None or hardware is None:
                continue
            if not all_members_train(generation, workers(job.id)):
                continue
            question = ReviewQuestion(
                _model(known), job, generation, hardware, now_s, self._calibrator.machine().measured_here,
                restart_cost_s(job, generation), self._compute_s(generation),
            )  # fmt: skip
            try:
                found = await self._ask(job, question, Review)
            except PlannerFailed:
                continue  # it keeps its plan
            if await self._apply(job, generation, known, found, now_s):
                changed.add(job.id)
        return changed

    def _next_to_review(self, live: Collection[str]) -> list[str]:
        """The next gangs to be reviewed, in the order of their names."""
        ordered = sorted(live)
        start = bisect_right(ordered, self._reviewed) if len(ordered) > MOST_REVIEWED else 0
        turn = [*ordered[start:], *ordered[:start]][:MOST_REVIEWED]
        self._reviewed = turn[-1] if turn else ""
        return turn

    async def _apply(self, job: Job, generation: Generation, known: KnownModel, found: Review, now_s: float) -> bool:
        plan = found.plan
        if found.disagrees is not None and plan is not None and self._machine_changed(found.disagrees):
            plan = {**plan, "doubted": True}
            self._calibrator.doubt()
        if plan is None:
            return False

        def work(connection: Connection) -> bool:
            stored, live = jobs.get(connection, job.id), generations.live_by_job(connection, {job.id}).get(job.id, [])
            if stored is None or stored.phase is not JobPhase.RUNNING:
                return False
            if [each.number for each in live] != [generation.number]:
                return False
            generations.update(connection, job.id, generation.number, plan=plan)
            if found.seen is not None:
                known_models.update(connection, job.tenant, known.key, seen=found.seen)
            if found.better is None:
                return False
            return self._replan(connection, stored, live[-1], found.better, now_s)

        again = await self._store.write(work)
        self._known.pop((job.tenant, model_key(job)), None)
        return again

    def _replan(self, connection: Connection, job: Job, now: Generation, better: Choice, now_s: float) -> bool:
        """Store a new generation of the same workers, or of those that the better plan uses."""
        one, before = better.estimate, dict(now.plan or {}).get("id", "replicas")
        reason = Reason(BETTER_PLAN, f"{one.plan.id} instead of {before}: {better.reason}")
        gang = SeatedGang(job, now.members, reason, now, choice=stored_choice(better, requested_plan(job)))
        taken, facts = generations.ports_in_use(connection), {"plan": one.plan.id, "step_s": one.step_s}
        return store_generation(connection, gang, self._nodes(), now_s, taken, facts)

    def _machine_changed(self, ratio: float) -> bool:
        """True if the machine seems to be another than the one that was measured."""
        profile = self._calibrator.machine().measured
        return profile is not None and differs_from_profile(profile, float(profile["flops_per_s"]["float32"]) / ratio)

    # ------------------------------------------------------------ curves

    async def refresh(self, active: Sequence[Job]) -> None:
        """Compute the curves of jobs with a known model for the next round; forget what is no longer needed."""
        stored = await self._store.read(known_models.keys)
        self._glances = {job.id: self._glances[job.id] for job in active if job.id in self._glances}
        if not stored and not self._known and not self._computing:
            return
        places = self._model_keys = {job.id: (job.tenant, model_key(job)) for job in active if job.training}
        for gone in set(self._known) - set(places.values()):
            del self._known[gone]  # only what jobs on their way need stays in memory
        self._computing = {job: seen for job, seen in self._computing.items() if job in places}
        known = [(job, await self.known(job)) for job in active if places.get(job.id) in stored]
        pairs = [(job, model) for job, model in known if model is not None and model.profile is not None]
        if pairs or len(self._curves):
            nodes, machine = tuple(self._nodes().values()), self._calibrator.machine()
            await asyncio.to_thread(self._curves.refresh, pairs, nodes, machine)

    def curve(self, job: Job) -> CalibratedCurve | None:
        """The job's speed on any gang, corrected by measurements; None while its model is unknown."""
        try:
            return self._curves.curve_of(job)
        except (ArithmeticError, LookupError, ValueError) as error:  # of numbers that its worker measured
            report_error("pulling a speed curve", error, job=job.id)
            return None

    def close(self) -> None:
        """End the planner."""
        self._planner.close()


def _model(known: KnownModel) -> Model:
    return Model(dict(known.profile or {}), dict(known.seen), dict(known.banned))


def _running(connection: Connection, some: Collection[str]) -> list[tuple[Job, Generation]]:
    """Those of the jobs that are trainings in one undisturbed generation, with that generation."""
    if not known_models.keys(connection):
        return []
    every, known = generations.live_by_job(connection, some), jobs.get_many(connection, some)
    alone = {job: live[-1] for job, live in every.items() if len(live) == 1}
    found = []
    for name, generation in sorted(alone.items()):
        job = known.get(name) if generation.phase is GenerationPhase.RUNNING else None
        if job is not None and job.training and job.phase is JobPhase.RUNNING and generation.broken_s is None:
            found.append((job, generation))
    return found
