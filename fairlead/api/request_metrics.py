"""What is known of every request from outside: its id, how long it took, how it ended; counted, logged and traced."""

from __future__ import annotations

import time

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairlead.api.request_ids import HEADER, id_of, request_id
from fairlead.control.observability import live_metrics, metric_families, tracing

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
UNMATCHED = "unmatched"  # one label for all addresses that lead nowhere: there is no end to them

log = structlog.get_logger("fairlead.api")


def route_of(scope: Scope) -> str:
    """The address as the routes have it, with names instead of values: of these there are only so many."""
    route = scope.get("route")
    path = getattr(route, "path_format", None) or getattr(route, "path", None)
    if not path:
        return UNMATCHED
    asked = str(scope["path"])
    prefix = "/api/v1"
    return f"{prefix}{path}" if asked.startswith(f"{prefix}/") and not path.startswith(prefix) else str(path)


class Observed:
    """The outermost layer: nothing is answered that is not counted."""

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
    """One request on its way."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._began_s = time.perf_counter()
        self._stream = False
        self.id = id_of(scope["headers"])
        self.method = scope["method"] if scope["method"] in METHODS else "other"
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            self._stream = any(name == b"content-type" and b"event-stream" in value for name, value in headers)
            message["headers"] = [*headers, (HEADER, self.id.encode())]
            if self._stream:  # how long it stays open says nothing of how fast we are
                self._measure()
        await self._send(message)

    def end(self) -> None:
        """Count it, and log it if it changed something or went wrong."""
        route, status = route_of(self._scope), self.status or 499  # 499: the client did not wait for the answer
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
