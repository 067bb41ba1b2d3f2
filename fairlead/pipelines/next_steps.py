"""Decides what to do next for a pipeline: a pure function of its graph, the states of its stages and of their jobs.

Level-triggered: called again with the same facts, for example after a crash, it returns the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from fairlead.pipelines.graph import order


class StagePhase(StrEnum):
    """The phase of a stage. While it is active, its job has the details."""

    WAITING = "waiting"  # for upstream stages
    ACTIVE = "active"  # its job waits or runs
    SUCCEEDED = "succeeded"
    CACHED = "cached"  # not run: reuses the result of an earlier run with the same code and inputs
    FAILED = "failed"
    SKIPPED = "skipped"  # an upstream stage failed
    CANCELLED = "cancelled"


DONE = frozenset({StagePhase.SUCCEEDED, StagePhase.CACHED})
OVER = frozenset(StagePhase) - {StagePhase.WAITING, StagePhase.ACTIVE}
MAX_REBUILDS = 3  # per stage, when its result was lost before another stage needed it


@dataclass(frozen=True, slots=True)
class StageState:
    """A stage as stored."""

    name: str
    phase: StagePhase = StagePhase.WAITING
    job: str | None = None
    message: str | None = None
    rebuilds: int = 0
    fresh: bool = False  # run it even if an earlier result is known


@dataclass(frozen=True, slots=True)
class JobFact:
    """How far the job of a stage is."""

    end: str | None  # succeeded, failed or cancelled as soon as known; None: in progress
    message: str | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()  # stages whose results were lost when it needed them
    stopping: bool = False  # it is being stopped


@dataclass(frozen=True, slots=True)
class Start:
    """The inputs of the stage exist: submit its job."""

    stage: str


@dataclass(frozen=True, slots=True)
class Reuse:
    """Reuse an earlier result for the stage."""

    stage: str


@dataclass(frozen=True, slots=True)
class Settle:
    """The stage has ended."""

    stage: str
    phase: StagePhase
    message: str | None = None
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rebuild:
    """The stage's result was lost and is needed: run it again, then the stages that need it."""

    stage: str
    for_stage: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The pipeline was cancelled: stop the stage's job."""

    stage: str


@dataclass(frozen=True, slots=True)
class PipelineEnd:
    """All stages have ended."""

    phase: str  # succeeded, failed or cancelled
    message: str | None = None


Step = Start | Reuse | Settle | Rebuild | Stop | PipelineEnd


def next_steps(
    upstream: Mapping[str, frozenset[str]],
    states: Mapping[str, StageState],
    jobs: Mapping[str, JobFact],
    known: frozenset[str] = frozenset(),
    *,
    cancelled: bool = False,
) -> list[Step]:
    """All steps possible now, by stage name; empty when everything is in progress.

    ``known`` are the stages with an earlier result. PipelineEnd comes alone, when nothing else is left.
    """
    planned: dict[str, list[Step]] = {}
    now = dict(states)  # updated with skipped stages, so that a whole chain behind a failure is skipped at once
    for name in order({name: upstream[name] for name in states}):
        state = states[name]
        if state.phase is StagePhase.ACTIVE:
            planned[name] = _steps_of_active(state, states, jobs.get(name), cancelled)
        elif state.phase is StagePhase.WAITING:
            planned[name] = _steps_of_waiting(state, upstream[name], now, name in known, cancelled)
        for step in planned.get(name, ()):
            if isinstance(step, Settle) and step.phase is StagePhase.SKIPPED:
                now[name] = replace(state, phase=step.phase, message=step.message)
    steps = [step for name in sorted(planned) for step in planned[name]]
    if not steps and all(state.phase in OVER for state in states.values()):
        return [_end(states, cancelled)]
    return steps


def _steps_of_active(
    state: StageState, states: Mapping[str, StageState], job: JobFact | None, cancelled: bool
) -> list[Step]:
    if job is None:  # pruned, or lost in a restore: nothing to wait for
        return [Settle(state.name, StagePhase.FAILED, "its job is gone")]
    if job.end is None:
        return [Stop(state.name)] if cancelled and not job.stopping else []
    if job.end == "succeeded":
        return [Settle(state.name, StagePhase.SUCCEEDED, result=job.result)]
    if job.end == "cancelled":
        return [Settle(state.name, StagePhase.CANCELLED, job.message)]
    gone = sorted(stage for stage in job.missing if stage in states)
    if gone and not cancelled and all(states[stage].rebuilds < MAX_REBUILDS for stage in gone):
        return [Rebuild(stage, state.name) for stage in gone]
    return [Settle(state.name, StagePhase.FAILED, job.message)]


def _steps_of_waiting(
    state: StageState, upstream: frozenset[str], states: Mapping[str, StageState], known: bool, cancelled: bool
) -> list[Step]:
    if cancelled:
        return [Settle(state.name, StagePhase.CANCELLED)]
    bad = sorted(other for other in upstream if states[other].phase in OVER - DONE)
    if bad:
        return [Settle(state.name, StagePhase.SKIPPED, _why_skipped(states[bad[0]]))]
    if known and not state.fresh:
        return [Reuse(state.name)]  # even before its inputs exist: they are not needed
    if all(states[other].phase in DONE for other in upstream):
        return [Start(state.name)]
    return []


def _why_skipped(upstream: StageState) -> str:
    """The root cause: a skipped stage passes on why."""
    if upstream.phase is StagePhase.SKIPPED and upstream.message:
        return upstream.message
    return f"upstream {upstream.name} {'was cancelled' if upstream.phase is StagePhase.CANCELLED else 'failed'}"


def _end(states: Mapping[str, StageState], cancelled: bool) -> PipelineEnd:
    failed = [name for name in sorted(states) if states[name].phase is StagePhase.FAILED]
    if cancelled:
        return PipelineEnd("cancelled")
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return PipelineEnd("failed", f"{failed[0]} failed{more}: {states[failed[0]].message or 'no reason given'}")
    if any(state.phase not in DONE for state in states.values()):
        stopped = next(name for name in sorted(states) if states[name].phase not in DONE)
        return PipelineEnd("cancelled", f"{stopped} was {states[stopped].phase.value}")
    return PipelineEnd("succeeded")
