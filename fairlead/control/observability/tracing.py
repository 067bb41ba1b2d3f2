"""Traces by option: what the rest of the platform calls, and which costs nothing until an OTLP endpoint is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from fairlead.control.records import Generation, Job, LoggedEvent
from fairlead.errors import InvalidSpec
from fairlead.scheduling.state import Decision

if TYPE_CHECKING:
    from fairlead.control.observability.otel import Exporter

VARIABLE = "FAIRLEAD_OTLP_ENDPOINT"

_exporter: Exporter | None = None


class RequestSpan(Protocol):
    """A request under way."""

    def answered(self, route: str, status: int, request_id: str) -> None: ...


class _NoSpan:
    def answered(self, route: str, status: int, request_id: str) -> None:
        """Nobody asked for traces."""


_NOTHING = _NoSpan()


def check_endpoint(endpoint: str) -> str:
    """The endpoint, or an error that says what it lacks: before anything is started."""
    if not endpoint.startswith(("http://", "https://")):
        raise InvalidSpec(f"{endpoint!r} is not an address", field="--otlp", value=endpoint,
                          fix="name a collector that takes OTLP over HTTP: http://localhost:4318")  # fmt: skip
    try:
        import fairlead.control.observability.otel  # noqa: F401 (whether it can be had)
    except ImportError as error:
        raise InvalidSpec(f"traces need OpenTelemetry: {error}", field="--otlp", value=endpoint,
                          fix="pip install 'fairlead[otel]'") from None  # fmt: skip
    return endpoint


def start(endpoint: str) -> None:
    """Send traces there from now on."""
    global _exporter
    from fairlead.control.observability.otel import Exporter

    _exporter = Exporter(check_endpoint(endpoint))


def stop() -> None:
    """Send what is left, and no more."""
    global _exporter
    if _exporter is not None:
        _exporter.close()
        _exporter = None


def is_enabled() -> bool:
    """Whether anybody asked for traces."""
    return _exporter is not None


@contextmanager
def request_span(method: str, headers: Iterable[tuple[bytes, bytes]]) -> Iterator[RequestSpan]:
    """A span around a request to the API; goes on with the caller's trace if it sent one (traceparent)."""
    if _exporter is None:
        yield _NOTHING
        return
    with _exporter.request(method, headers) as span:
        yield span


@contextmanager
def round_span() -> Iterator[None]:
    """A span around a round of decisions."""
    if _exporter is None:
        yield
        return
    with _exporter.round():
        yield


def record_round(decisions: Sequence[Decision], changed: Iterable[str], at_s: float) -> None:
    """The round under way decided this, and changed these jobs: their generations will point back to it."""
    if _exporter is not None:
        _exporter.decided([(type(each).__name__.lower(), each.job) for each in decisions], changed, at_s)


def record_submission(job: str) -> None:
    """The request under way made this job: the job's trace will point back to it."""
    if _exporter is not None:
        _exporter.submitted(job)


def export_job(event: LoggedEvent, job: Job | None, generations: Iterable[Generation]) -> None:
    """A job has ended: tell its whole life as one trace."""
    if _exporter is not None and job is not None:
        _exporter.life(event, job, list(generations))
