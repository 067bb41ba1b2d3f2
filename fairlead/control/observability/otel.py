"""Exports traces over OTLP/HTTP with the OpenTelemetry SDK.

Imported only when an endpoint is configured (extra ``otel``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fairlead import __version__
from fairlead.cluster import nodes_of
from fairlead.control.records import Generation, Job, JobPhase, LoggedEvent

MAX_REMEMBERED = 10_000  # jobs whose request and round spans are remembered for links
DELAY_MS = 1000.0


class _Ids(RandomIdGenerator):
    """Random ids, except for a job's trace, whose id is derived from the job's: it is found after a restart, too."""

    def __init__(self) -> None:
        self.job: str | None = None  # the job whose root span is being created

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self.job is None else trace_id(self.job)

    def generate_span_id(self) -> int:
        return super().generate_span_id() if self.job is None else trace_id(self.job) >> 64


def trace_id(job: str) -> int:
    """The id of this job's trace."""
    return int.from_bytes(hashlib.sha256(job.encode()).digest()[:16], "big")


class _Request:
    """The span of one request."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def answered(self, route: str, status: int, request_id: str) -> None:
        method = getattr(self._span, "attributes", {}).get("http.request.method", "")
        self._span.update_name(f"{method} {route}")
        self._span.set_attributes(
            {"http.route": route, "http.response.status_code": status, "fairlead.request_id": request_id}
        )
        if status >= 500:
            self._span.set_status(Status(StatusCode.ERROR))


class Exporter:
    """Creates spans and sends them in a thread of its own."""

    def __init__(self, endpoint: str) -> None:
        url = endpoint if urlsplit(endpoint).path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"
        resource = Resource.create({"service.name": "fairlead", "service.version": __version__})
        self._ids = _Ids()
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=url), schedule_delay_millis=DELAY_MS)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("fairlead", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._requests: dict[str, SpanContext] = {}
        self._rounds: dict[tuple[str, float], SpanContext] = {}

    def close(self) -> None:
        self._provider.shutdown()

    @contextmanager
    def request(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> Iterator[_Request]:
        wanted = {b"traceparent", b"tracestate"}
        carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name in wanted}
        parent = self._propagator.extract(carrier, Context())
        attributes = {"http.request.method": method}
        with self._tracer.start_as_current_span(method, parent, SpanKind.SERVER, attributes) as span:
            yield _Request(span)

    @contextmanager
    def round(self) -> Iterator[None]:
        with self._tracer.start_as_current_span("decision round", Context()):
            yield

    def decided(self, decisions: Sequence[tuple[str, str]], changed: Iterable[str], at_s: float) -> None:
        span = trace.get_current_span()
        kinds = [kind for kind, _ in decisions]
        span.set_attributes({f"fairlead.decisions.{kind}": kinds.count(kind) for kind in sorted(set(kinds))})
        jobs = sorted(changed)
        span.set_attribute("fairlead.jobs", jobs)
        for job in jobs:
            _remember(self._rounds, (job, at_s), span.get_span_context())

    def submitted(self, job: str) -> None:
        _remember(self._requests, job, trace.get_current_span().get_span_context())

    def life(self, event: LoggedEvent, job: Job, generations: Sequence[Generation]) -> None:
        """The job as one trace: its waiting times, its generations and its end."""
        asked = self._requests.pop(job.id, None)
        self._ids.job = job.id
        try:
            root = self._tracer.start_span(
                "job", Context(), start_time=_ns(job.submitted_s), attributes=_of_job(job), links=_links(asked)
            )
        finally:
            self._ids.job = None
        inside = trace.set_span_in_context(root, Context())
        since_s = job.submitted_s
        for generation in generations:
            if generation.created_s > since_s:
                self._span("queued", inside, since_s, generation.created_s, {})
            self._generation(inside, generation, event.time_s)
            since_s = generation.ended_s or event.time_s
        if not generations:
            self._span("queued", inside, since_s, event.time_s, {})
        if job.phase is JobPhase.FAILED:
            root.set_status(Status(StatusCode.ERROR))  # without the message, which is the tenant's own
        root.end(_ns(event.time_s))

    def _generation(self, inside: Context, generation: Generation, until_s: float) -> None:
        attributes: dict[str, Any] = {
            "fairlead.generation": generation.number,
            "fairlead.workers": len(generation.members),
            "fairlead.nodes": sorted(set(nodes_of(generation.members))),
            "fairlead.reason": generation.reason_code,
            "fairlead.outcome": generation.outcome or "",
        }
        decided = self._rounds.pop((generation.job, generation.created_s), None)
        ended_s = generation.ended_s or until_s
        span = self._tracer.start_span(
            "generation", inside, start_time=_ns(generation.created_s), attributes=attributes, links=_links(decided)
        )
        within = trace.set_span_in_context(span, inside)
        self._span("start", within, generation.created_s, generation.running_s or ended_s, {})
        if generation.broken_s is not None:
            span.add_event("worker lost", timestamp=_ns(generation.broken_s))
            span.set_status(Status(StatusCode.ERROR))
        span.end(_ns(ended_s))

    def _span(self, name: str, inside: Context, from_s: float, to_s: float, attributes: dict[str, Any]) -> None:
        self._tracer.start_span(name, inside, start_time=_ns(from_s), attributes=attributes).end(_ns(to_s))


def _of_job(job: Job) -> dict[str, Any]:
    return {
        "fairlead.job": job.id,
        "fairlead.tenant": job.tenant,
        "fairlead.state": str(job.phase),
        "fairlead.generations": job.generation,
        "fairlead.recoveries": job.recoveries,
        "fairlead.preemptions": job.preemptions,
    }


def _links(context: SpanContext | None) -> list[Link]:
    return [] if context is None or not context.is_valid else [Link(context)]


def _remember(memory: dict[Any, SpanContext], key: Any, context: SpanContext) -> None:
    if context.is_valid:
        memory[key] = context
        while len(memory) > MAX_REMEMBERED:
            del memory[next(iter(memory))]


def _ns(time_s: float) -> int:
    return int(time_s * 1e9)
