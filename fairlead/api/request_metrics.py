"""Counts, times, logs and traces every request."""

from __future__ import annotations

import time

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairlead.api.request_ids import HEADER, request_id, request_id_of
from fairlead.control.observability import live_metrics, metric_families, tracing

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
UNMATCHED = "unmatched"  # one label for all unknown paths, whose number is unbounded

log = structlog.get_logger("fairlead.api")


def route_of(scope: Scope) -> str:
    """The route's path with parameter names instead of values, so that metric labels are bounded."""
    route = scope.get("route")
    path = getattr(route, "path_format", None) or getattr(route, "path", None)
    if not path:
        return UNMATCHED
    asked = str(scope["path"])
    prefix = "/api/v1"
    return f"{prefix}{path}" if asked.startswith(f"{prefix}/") and not path.startswith(prefix) else str(path)


class RequestMetrics:
    """The outermost middleware: counts, logs and traces every request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seen = ObservedRequest(scope, send)
        request_id.set(seen.id)
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=seen.id)
        try:
            with (
                live_metrics.gauge_incremented(metric_families.IN_FLIGHT),
                tracing.request_span(seen.method, scope["headers"]) as span,
            ):
                try:
                    await self._app(scope, receive, seen.send)
                finally:
                    span.answered(route_of(scope), seen.status or 499, seen.id)
        finally:
            seen.end()


class ObservedRequest:
    """One request in progress."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._began_s = time.perf_counter()
        self._stream = False
        self.id = request_id_of(scope["headers"])
        self.method = scope["method"] if scope["method"] in METHODS else "other"
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            self._stream = any(name == b"content-type" and b"event-stream" in value for name, value in headers)
            message["headers"] = [*headers, (HEADER, self.id.encode())]
            if self._stream:  # the duration of a stream is no latency
                self._measure()
        await self._send(message)

    def end(self) -> None:
        """Count the request, and log it if it changed something or failed."""
        route, status = route_of(self._scope), self.status or 499  # 499: the client disconnected
        live_metrics.count(metric_families.REQUESTS, route, self.method, str(status))
        if not self._stream:
            self._measure()
        took_ms = round((time.perf_counter() - self._began_s) * 1000, 1)
        say = log.info if self.method not in ("GET", "HEAD", "OPTIONS") or status >= 500 else log.debug
        say("request", method=self.method, route=route, status=status, took_ms=took_ms)

    def _measure(self) -> None:
        live_metrics.observe(
            metric_families.REQUEST_TIME, time.perf_counter() - self._began_s, route_of(self._scope), self.method
        )
