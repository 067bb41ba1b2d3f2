"""Optional tracing: no-ops until an OTLP endpoint is configured."""

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
    """The span of a request in progress."""

    def answered(self, route: str, status: int, request_id: str) -> None: ...


class _NoSpan:
    def answered(self, route: str, status: int, request_id: str) -> None:
        """Does nothing: tracing is off."""


_NOTHING = _NoSpan()


def check_endpoint(endpoint: str) -> str:
    """The endpoint; raises :class:`InvalidSpec` for a wrong address or a missing OpenTelemetry package."""
    if not endpoint.startswith(("http://", "https://")):
        raise InvalidSpec(f"{endpoint!r} is not an address", field="--otlp", value=endpoint,
                          fix="name a collector that takes OTLP over HTTP: http://localhost:4318")  # fmt: skip
    try:
        import fairlead.control.observability.otel  # noqa: F401 (checks that it is installed)
    except ImportError as error:
        raise InvalidSpec(f"traces need OpenTelemetry: {error}", field="--otlp", value=endpoint,
                          fix="pip install 'fairlead[otel]'") from None  # fmt: skip
    return endpoint


def start(endpoint: str) -> None:
    """Send traces to this endpoint from now on."""
    global _exporter
    from fairlead.control.observability.otel import Exporter

    _exporter = Exporter(check_endpoint(endpoint))


def stop() -> None:
    """Send the remaining spans and stop."""
    global _exporter
    if _exporter is not None:
        _exporter.close()
        _exporter = None


def is_enabled() -> bool:
    """True if traces are exported."""
    return _exporter is not None


@contextmanager
def request_span(method: str, headers: Iterable[tuple[bytes, bytes]]) -> Iterator[RequestSpan]:
    """A span around an API request, continuing the caller's trace if it sent a traceparent."""
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
    """Add the round's decisions to its span; generations of the changed jobs will link to it."""
    if _exporter is not None:
        _exporter.decided([(type(each).__name__.lower(), each.job) for each in decisions], changed, at_s)


def record_submission(job: str) -> None:
    """Remember the current request as the job's origin; the job's trace will link to it."""
    if _exporter is not None:
        _exporter.submitted(job)


def export_job(event: LoggedEvent, job: Job | None, generations: Iterable[Generation]) -> None:
    """Export the life of an ended job as one trace."""
    if _exporter is not None and job is not None:
        _exporter.life(event, job, list(generations))
