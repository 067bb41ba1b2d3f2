"""A submitted job: refreshes its state, waits for its end, reads its logs, metrics and result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from fairlead.errors import JobCancelled, JobFailed, StillRunning
from fairlead.views.jobs import JobDetail, JobView, LogLine, ResultView, Why

ENDED = frozenset({"succeeded", "failed", "cancelled"})


class JobRequests(Protocol):
    """The requests about one job that a :class:`Job` needs; ``sdk.client.Client`` makes them."""

    def detail(self, ref: str) -> JobDetail: ...
    def result(self, ref: str, *, download: str | Path | None = None, force: bool = False) -> ResultView: ...
    def metrics(self, ref: str) -> list[dict[str, float]]: ...
    def logs(
        self, ref: str, *, follow: bool = False, worker: str | None = None, tail: int | None = None
    ) -> Iterator[LogLine]: ...
    def why(self, ref: str, *, forecast: bool = False) -> Why: ...
    def cancel(self, ref: str) -> Job: ...


class Job:
    """A job with its state when it was last read; :meth:`refresh` reads it again."""

    def __init__(self, client: JobRequests, view: JobView) -> None:
        self._client = client
        self.view = view

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def state(self) -> str:
        """queued, starting, running, stopping, succeeded, failed or cancelled, when last read."""
        return self.view.state

    @property
    def ended(self) -> bool:
        return self.view.state in ENDED

    def refresh(self) -> Job:
        self.view = self.detail()
        return self

    def detail(self) -> JobDetail:
        """The job with its spec and the history of its generations."""
        return self._client.detail(self.id)

    def wait(self, timeout: float | None = None) -> Job:
        """Wait until the job has ended in any state; ``StillRunning`` after the timeout (seconds)."""
        until = None if timeout is None else time.monotonic() + timeout
        pause_s = 0.05
        while not self.refresh().ended:
            left_s = None if until is None else until - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise StillRunning(f"{self.name} is still {self.state} after {timeout:g} s", fix="wait longer")
            time.sleep(pause_s if left_s is None else min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, 1.0)
        return self

    def result(
        self, download: str | Path | None = None, timeout: float | None = None, *, force: bool = False
    ) -> ResultView:
        """Wait for the job and return its result; raises ``JobFailed`` or ``JobCancelled`` if it did not succeed."""
        check(self.wait(timeout).view)
        return self._client.result(self.id, download=download, force=force)

    def metrics(self) -> list[dict[str, float]]:
        """One entry per step, ready for a data frame."""
        return self._client.metrics(self.id)

    def logs(self, follow: bool = False, worker: str | None = None, tail: int | None = None) -> Iterator[LogLine]:
        return self._client.logs(self.id, follow=follow, worker=worker, tail=tail)

    def why(self, *, forecast: bool = False) -> Why:
        return self._client.why(self.id, forecast=forecast)

    def cancel(self) -> Job:
        self.view = self._client.cancel(self.id).view
        return self

    def __repr__(self) -> str:
        steps = f", step {self.view.step}/{self.view.total_steps}" if self.view.total_steps else ""
        return f"<Job {self.name} ({self.id}) of {self.view.tenant}: {self.state}{steps}>"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)


def check(view: JobView) -> None:
    """Raise the matching error if the job has not succeeded."""
    message = f": {view.message}" if view.message else ""
    if view.state == "failed":
        raise JobFailed(f"{view.name} failed{message}", fix=f"read its output: fairlead logs {view.id}")
    if view.state == "cancelled":
        raise JobCancelled(f"{view.name} was cancelled{message}")
    if view.state not in ENDED:
        raise StillRunning(f"{view.name} is still {view.state}", fix=f"follow: fairlead logs {view.id} -f")
