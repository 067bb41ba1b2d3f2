"""Forecasts starts and admissions: plays the policy forward, within limits, in a process of its own."""

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
"""CPU time of one answer; what was found within ``ENOUGH_S`` is returned, unless a single round takes longer."""

FORECASTS = ProcessSpec(
    "fairlead.control.foresight.questions", "looking ahead", CPU_S, wall_s=60.0, nice=5, most_waiting=8, idle_s=60.0
)

ADMISSIONS = replace(FORECASTS, nice=0, most_waiting=64, idle_s=600.0)
"""For submissions: they wait for the answer, but not behind mere queries."""

T = TypeVar("T")


class Foresight:
    """Asks that process. A state is packed once, however many questions there are about it."""

    def __init__(self, planner: Planner | None = None) -> None:
        self._planner = planner or PlannerProcess(FORECASTS)
        self._packed: tuple[ClusterState | None, msgspec.Raw] = None, msgspec.Raw()

    async def starts(self, state: ClusterState) -> Starts:
        """The expected starts of all waiting jobs; raises :class:`PlannerFailed` where there is no answer."""
        return await self._ask("", StartsQuestion(self._pack(state)), Starts)

    async def admission(
        self, state: ClusterState, job: JobState, tenant: str | None, *, strict: bool = False, look_ahead: bool = True
    ) -> Answer:
        """Whether this job would be admitted, worded for this tenant; raises :class:`PlannerFailed` as above."""
        question = AdmissionQuestion(self._pack(state), job, tenant, strict, look_ahead)
        return await self._ask(job.tenant, question, Answer)

    def close(self) -> None:
        self._planner.close()

    async def _ask(self, tenant: str, question: Question, kind: type[T]) -> T:
        try:
            found: T = await asyncio.wrap_future(self._planner.ask(tenant, question, kind))
        except PlannerFault as error:  # its text may name jobs of other tenants
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
