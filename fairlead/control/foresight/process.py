"""Looks ahead: the policy played forward for whoever asks, within bounds, in a process of their own."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TypeVar

import msgspec

from fairlead.control.foresight.questions import AdmissionQuestion, Question, Starts, StartsQuestion, pack_state
from fairlead.control.plans.planner_process import Planner, PlannerFailed, PlannerFault, PlannerProcess, ProcessSpec
from fairlead.control.reconcile.internal_errors import report_error
from fairlead.scheduling.admission import Answer
from fairlead.scheduling.state import ClusterState, JobState

CPU_S = 10.0
"""Of one answer; what is found until then is told before, unless a single round takes that long."""

FORECASTS = ProcessSpec(
    "fairlead.control.foresight.questions", "looking ahead", CPU_S, wall_s=60.0, nice=5, most_waiting=8, idle_s=60.0
)

ADMISSIONS = replace(FORECASTS, nice=0, most_waiting=64, idle_s=600.0)
"""For those who submit: they wait for the answer, but not behind those who only ask."""

T = TypeVar("T")


class Foresight:
    """Asks that process. One state is packed once, however many questions there are about it."""

    def __init__(self, planner: Planner | None = None) -> None:
        self._planner = planner or PlannerProcess(FORECASTS)
        self._packed: tuple[ClusterState | None, msgspec.Raw] = None, msgspec.Raw()

    async def starts(self, state: ClusterState) -> Starts:
        """When all who wait may expect to start; raises :class:`PlannerFailed` where there is no answer."""
        return await self._ask("", StartsQuestion(self._pack(state)), Starts)

    async def admission(
        self, state: ClusterState, job: JobState, tenant: str | None, *, strict: bool = False, look_ahead: bool = True
    ) -> Answer:
        """What becomes of this job, in words that this tenant may read; raises :class:`PlannerFailed` as above."""
        question = AdmissionQuestion(self._pack(state), job, tenant, strict, look_ahead)
        return await self._ask(job.tenant, question, Answer)

    def close(self) -> None:
        self._planner.close()

    async def _ask(self, tenant: str, question: Question, kind: type[T]) -> T:
        try:
            found: T = await asyncio.wrap_future(self._planner.ask(tenant, question, kind))
        except PlannerFault as error:  # it may name others' jobs
            raise PlannerFailed(
                f"an error of the platform's own (error {report_error('looking ahead', error)})"
            ) from error
        return found

    def _pack(self, state: ClusterState) -> msgspec.Raw:
        if self._packed[0] is not state:
            try:
                self._packed = state, pack_state(state)
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                raise PlannerFailed(f"the state cannot be sent: {error}") from error
        return self._packed[1]
