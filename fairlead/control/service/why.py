"""Explains why a job waits, runs as it does, or ended, from the last round; on request with a forecast."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from fairlead.control.identity.access import scope
from fairlead.control.job_views import backs_off, event_view, generation_views, job_view, reason_of, reason_view
from fairlead.control.plans.planner_process import PlannerFailed
from fairlead.control.reconcile.round_store import LastRound
from fairlead.control.records import ENDED, Generation, Job, JobPhase, LoggedEvent, Token
from fairlead.control.service.core import Verbs
from fairlead.control.service.sla_admission import expectations, workload_profile
from fairlead.control.service.start_forecasts import with_expected_start
from fairlead.control.store import events, generations, jobs
from fairlead.scheduling.mentioned_jobs import ANOTHER_TENANTS_JOB
from fairlead.scheduling.reasons import Explanation
from fairlead.scheduling.state import Hold, Start
from fairlead.views.jobs import EventView, ReasonView, Why

SOON_S = 2.0
"""Longest wait for the first round that sees a new job."""


@dataclass(frozen=True, slots=True)
class Found:
    """Everything from the store for one answer."""

    job: Job
    labels: dict[str, str]
    every: list[Generation]
    stopped: LoggedEvent | None  # the last preemption; None: it runs, or was never preempted
    owners: dict[str, str]  # tenants of the jobs ahead in the queue


class ReasonVerbs(Verbs):
    """Explanations for one job."""

    async def why(self, who: Token, ref: str, *, forecast: bool = False) -> Why:
        """Why the job waits, runs as it does, or ended, and what would let it start.

        ``forecast`` adds its expected start and end, and whether its promise can be kept.
        """
        found = await self._load(who, ref)
        if await self._wait_for_round(found.job):
            found = await self._load(who, found.job.id)
        job, own, now_s, outlook = found.job, scope(who), self._core.clock(), self._core.controller.last_round
        live = [generation for generation in found.every if generation.ended_s is None]
        hold = with_expected_start(outlook.holds.get(job.id), self._core.forecasts.start_s.get(job.id))
        reason = reason_of(job, live[-1] if live else None, hold, own)
        reason = reason or ReasonView(code="unknown", text="not decided yet")
        said = _last_explanation(outlook, job, live)
        if said is not None and said.reason is not None:
            view = reason_view(said.reason, own)
            reason = view if job.phase is JobPhase.QUEUED else _with_current_reason(reason, view)
        if found.stopped is not None:
            reason = _with_stop_reason(reason, event_view(found.stopped, own), job)
        shown = job_view(job, found.labels, live, hold, now_s, own)
        why = Why(
            job=shown, reason=reason, unblocks=[] if said is None else list(said.would_help),
            ahead=[name if own in (None, owner) else ANOTHER_TENANTS_JOB for name, owner in found.owners.items()],
            expected_start_s=shown.expected_start_s if job.phase is JobPhase.QUEUED else None,
            generations=generation_views(found.every, own), profile=self._profile(job, outlook),
        )  # fmt: skip
        return why.model_copy(update=await self._forecast_fields(job, own)) if forecast else why

    async def _load(self, who: Token, ref: str) -> Found:
        outlook = self._core.controller.last_round

        def work(connection: Connection) -> Found:
            job = jobs.find(connection, ref, scope(who))
            waits = job.phase is JobPhase.QUEUED
            hold = outlook.holds.get(job.id) if waits else None
            first = () if hold is None else hold.ahead
            known = jobs.get_many(connection, first)
            return Found(
                job=job,
                labels=jobs.labels_of(connection, [job.id]).get(job.id, {}),
                every=generations.of_job(connection, job.id),
                stopped=events.last(connection, job.id, "job-preempted") if waits and job.preemptions else None,
                owners={name: known[name].tenant for name in first if name in known},
            )

        return await self._read(work)

    async def _wait_for_round(self, job: Job) -> bool:
        """Wait for a round if none has seen this waiting job yet; True if one was held."""
        controller, before, until_s = self._core.controller, self._core.controller.last_round, time.monotonic() + SOON_S
        rests = (
            backs_off(job)
            or job.id in controller.gang_registry.cooling_until_s
            or controller.quarantine.is_held(job.id)
        )
        if job.phase is not JobPhase.QUEUED or job.id in before.reasons or rests:
            return False
        while controller.last_round is before and (left_s := until_s - time.monotonic()) > 0:
            await controller.wait_for_news(left_s)
        return controller.last_round is not before

    async def _forecast_fields(self, job: Job, own: str | None) -> dict[str, Any]:
        """The predicted fields of a waiting job, or why there is no prediction."""
        if job.phase is not JobPhase.QUEUED:
            return {}
        state, now_s = await self._recent_state(), self._core.clock()
        asked = next((one for one in state.jobs if one.id == job.id), None)
        if asked is None:
            return {"unforeseen": "no round has seen it yet, or it is in back-off"}
        try:
            return expectations(await self._forecast_admission(state, asked, own), own, now_s)
        except PlannerFailed as error:
            return {"unforeseen": str(error)}

    @staticmethod
    def _profile(job: Job, outlook: LastRound) -> dict[str, Any]:
        return {} if outlook.cluster is None or job.phase in ENDED else workload_profile(outlook.cluster, job.id)


def _last_explanation(outlook: LastRound, job: Job, live: list[Generation]) -> Explanation | None:
    """The last round's explanation, if the job has not changed since."""
    said = outlook.reasons.get(job.id)
    if said is None:
        return None
    if job.phase is JobPhase.QUEUED:
        starts = isinstance(said.decision, Start) and job.since_s <= outlook.decided_s
        return said if starts or isinstance(said.decision, Hold) else None
    current = live and live[-1].created_s < outlook.decided_s
    return said if job.phase is JobPhase.RUNNING and current else None


def _with_stop_reason(reason: ReasonView, stopped: EventView, job: Job) -> ReasonView:
    """Add why a waiting job was stopped before."""
    facts = {**reason.facts, "stopped": stopped.facts.get("reason"), "stopped_s": stopped.time_s}
    why = stopped.text.removeprefix(f"{job.id}: ")
    return ReasonView(code=reason.code, text=f"{reason.text}; it ran before and was stopped: {why}", facts=facts)


def _with_current_reason(reason: ReasonView, why: ReasonView) -> ReasonView:
    """Add why a running gang does not grow, or what is about to change."""
    facts = {**reason.facts, "now": why.code, **why.facts}
    return ReasonView(code=reason.code, text=f"{reason.text}; now: {why.text}", facts=facts)
