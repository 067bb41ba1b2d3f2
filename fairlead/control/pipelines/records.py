"""Pipelines and their stages as stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.pipelines.next_steps import StagePhase, StageState

RUNNING = "running"


@dataclass(frozen=True, slots=True)
class PipelineRecord:
    """One pipeline; its declaration never changes."""

    id: str
    tenant: str
    name: str
    phase: str  # running, succeeded, failed or cancelled
    submitted_s: float
    submitted_by: str  # token id
    request_digest: str
    spec: Mapping[str, Any]
    key: str | None = None
    finished_s: float | None = None
    cancelled_by: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage of one pipeline."""

    pipeline: str
    name: str
    tenant: str
    fingerprint: str
    phase: StagePhase = StagePhase.WAITING
    job: str | None = None
    message: str | None = None
    result: Mapping[str, Any] | None = None  # a reference, opened only in workers of its tenant
    kept: bool = False
    reused: str | None = None
    rebuilds: int = 0
    fresh: bool = False
    started_s: float | None = None
    finished_s: float | None = None

    @property
    def state(self) -> StageState:
        """The part on which the next steps depend."""
        return StageState(self.name, self.phase, self.job, self.message, self.rebuilds, self.fresh)
