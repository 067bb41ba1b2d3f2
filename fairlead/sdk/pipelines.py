"""The client's verbs for pipelines, and a submitted pipeline."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fairlead.errors import JobCancelled, JobFailed, NotFound, StillRunning
from fairlead.views.pipelines import PipelineDetail, PipelinePage, PipelineView, StageView

if TYPE_CHECKING:
    from fairlead.pipelines.declarations import Declaration, Pipeline
    from fairlead.sdk.transport import Transport

ENDED = frozenset({"succeeded", "failed", "cancelled"})


class PipelineRun:
    """A pipeline with its state when it was last read; :meth:`refresh` reads it again."""

    def __init__(self, client: PipelineVerbs, view: PipelineDetail) -> None:
        self._client = client
        self.view = view

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def state(self) -> str:
        """running, succeeded, failed or cancelled, when last read."""
        return self.view.state

    @property
    def ended(self) -> bool:
        return self.view.state in ENDED

    @property
    def stages(self) -> dict[str, StageView]:
        """Stages by name, when last read."""
        return {stage.name: stage for stage in self.view.stages}

    def refresh(self) -> PipelineRun:
        self.view = self._client.pipeline_detail(self.id)
        return self

    def wait(self, timeout: float | None = None) -> PipelineRun:
        """Wait until it has ended in any state; ``StillRunning`` after the timeout (seconds)."""
        until = None if timeout is None else time.monotonic() + timeout
        pause_s = 0.05
        while not self.refresh().ended:
            left_s = None if until is None else until - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise StillRunning(f"{self.id} is still {self.state} after {timeout:g} s", fix="wait longer")
            time.sleep(pause_s if left_s is None else min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, 0.5)
        return self

    def value(self, stage: str) -> Any:
        """A stage's result if it is a small plain value; arrays and models stay on the platform."""
        check(self.wait().view)
        found = self.stages.get(stage)
        if found is None:
            raise NotFound(f"there is no stage {stage!r}", fix=f"use one of: {', '.join(self.stages)}")
        if found.value is None and found.gave not in (None, "None"):
            raise NotFound(f"the result of {stage}, {found.gave}, stays in the memory of the platform",
                           fix="write it to a file in FAIRLEAD_OUTPUT in a stage, or return plain values")  # fmt: skip
        return found.value

    def cancel(self) -> PipelineRun:
        self.view = self._client.cancel_pipeline(self.id).view
        return self

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {state}" for state, count in self.view.counts.items())
        return f"<Pipeline {self.id} of {self.view.tenant}: {self.state} ({counts})>"


def check(view: PipelineView) -> None:
    """Raise the matching error if the pipeline has not succeeded."""
    message = f": {view.message}" if view.message else ""
    if view.state == "failed":
        raise JobFailed(f"{view.name} failed{message}", fix=f"see its stages: fairlead pipeline show {view.id}")
    if view.state == "cancelled":
        raise JobCancelled(f"{view.name} was cancelled{message}")
    if view.state not in ENDED:
        raise StillRunning(f"{view.name} is still {view.state}", fix=f"follow: fairlead pipeline show {view.id}")


class PipelineVerbs:
    """The client's verbs for pipelines."""

    _wire: Transport

    def run_pipeline(
        self, what: Pipeline | Declaration | Mapping[str, Any] | str | Path, *, folder: str | Path | None = None,
        key: str | None = None, tenant: str | None = None, name: str | None = None, priority: int | None = None,
        labels: Mapping[str, str] | None = None, **params: Any,
    ) -> PipelineRun:  # fmt: skip
        """Run a graph of stages: a function marked with @pipeline and its parameters, ``file.py:pipeline``, or YAML."""
        from fairlead.sdk.pipeline_specs import prepare

        fields = {"tenant": tenant, "name": name, "priority": priority, "labels": dict(labels) if labels else None}
        prepared = prepare(what, Path(folder).expanduser() if folder is not None else None, params, fields)
        packed = prepared.pack()
        place = f"/bundles/{packed.digest}"
        if not self._wire.exists(place, params={"tenant": prepared.spec.tenant}):
            self._wire.call("PUT", place, params={"tenant": prepared.spec.tenant}, content=packed.bytes)
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        answer = self._wire.call("POST", "/pipelines", body=prepared.body(packed.digest), headers=headers)
        return PipelineRun(self, PipelineDetail.model_validate(answer))

    def pipeline_detail(self, ref: str) -> PipelineDetail:
        return PipelineDetail.model_validate(self._wire.call("GET", _place(ref)))

    def pipeline(self, ref: str) -> PipelineRun:
        """The pipeline with this id or id prefix, or the newest pipeline of this name."""
        return PipelineRun(self, self.pipeline_detail(ref))

    def pipelines(self, *, tenant: str | None = None, limit: int = 100) -> list[PipelineView]:
        """The newest pipelines."""
        answer = self._wire.call("GET", "/pipelines", params={"tenant": tenant, "limit": limit})
        return PipelinePage.model_validate(answer).items

    def cancel_pipeline(self, ref: str) -> PipelineRun:
        """Stop its running stages and start no others."""
        return PipelineRun(self, PipelineDetail.model_validate(self._wire.call("POST", f"{_place(ref)}/cancel")))


def _place(ref: str) -> str:
    return f"/pipelines/{quote(ref, safe='')}"
