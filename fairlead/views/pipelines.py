"""Response models for pipelines."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fairlead.views.jobs import View


class StageView(View):
    """The present state of a stage."""

    name: str
    kind: str  # function, training, estimator or command
    state: str  # waiting, queued, starting, running, stopping, succeeded, cached, failed, skipped, cancelled
    upstream: list[str] = Field(default_factory=list)
    job: str | None = None
    message: str | None = None
    attempts: int = 0
    min_workers: int = 1
    max_workers: int = 1
    reused: str | None = None  # the pipeline whose cached result is used
    started_s: float | None = None
    finished_s: float | None = None
    gave: str | None = None  # short description of its result
    gave_bytes: int | None = None
    value: Any = None  # its result, if small and plain


class PipelineView(View):
    """The present state of a pipeline. Times are seconds since the epoch."""

    id: str
    name: str
    tenant: str
    state: str  # running, succeeded, failed, cancelled
    labels: dict[str, str] = Field(default_factory=dict)
    submitted_s: float
    submitted_by: str
    finished_s: float | None = None
    message: str | None = None
    counts: dict[str, int] = Field(default_factory=dict)  # stages by state


class PipelineDetail(PipelineView):
    """A pipeline with its stages in topological order."""

    stages: list[StageView] = Field(default_factory=list)


class PipelinePage(View):
    """The newest pipelines."""

    items: list[PipelineView]
