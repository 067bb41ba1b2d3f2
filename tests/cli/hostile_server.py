"""A platform that wishes whoever asks it ill: every answer has the right shape, and every string in it steers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from fairlead.views import datasets, jobs, pipelines, reports
from fairlead.views.jobs import View

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\x9b31m\r\nFORGED\x0b\x0c\x85\u2028b\u202e\u2066\u200f\u061c\x00\x7fz"
NOW_S = 1_800_000_000.0
# What a field must hold for the commands to look further; the strings within are as hostile as all others.
SHAPES: dict[str, Any] = {
    "profile": {"purpose": HOSTILE, "bound": HOSTILE, "network": 0.5, "compute": 0.5, "memory": 0.5, "score": 0.5},
    "policy": {"network": HOSTILE, "folders": [HOSTILE], "disk": 1, "kept": 1, "log": 1, "files": HOSTILE, "grid": 1},
    "spec": {"name": HOSTILE, "params": {"source": HOSTILE}},
    "manifest": {"schema": [{"name": HOSTILE, "dtype": HOSTILE, "shape": [HOSTILE]}]},
    "budget": {"device_hours": 1.0, "per": HOSTILE, "warn_at": 0.5},
    "neighbours": [{"class": HOSTILE, "beside": HOSTILE, "slowdown": 0.5, "seen": 1}],
    "energy": {"kwh": 1.0, "saved_kwh": 1.0, "asleep_s": 1.0},
    "steps": [{HOSTILE: 1.0, "time_s": 1e308}, {HOSTILE: 1e308, "time_s": NOW_S}],
    "keys": dict.fromkeys(("tenant", "user", "job"), HOSTILE), "parent": None,
    "repeats": "bits", "same_weights": False, "next": None,
}  # fmt: skip


def sample(kind: Any, state: str, name: str = "") -> Any:
    """A value of this type whose every string is hostile."""
    if name in SHAPES:
        return SHAPES[name]
    if name == "state" and kind is str:
        return state
    if isinstance(kind, type) and issubclass(kind, View):
        return {field: sample(inner, state, field) for field, inner in get_type_hints(kind).items()
                if field in kind.model_fields}  # fmt: skip
    if get_origin(kind) is UnionType:
        return sample(next(part for part in get_args(kind) if part is not NoneType), state, name)
    if get_origin(kind) is list:
        return [sample(get_args(kind)[0], state)]
    if get_origin(kind) is dict:
        return {HOSTILE: sample(get_args(kind)[1], state)}
    if kind is float:
        return NOW_S if name.endswith("_s") else 0.5
    return {bool: True, int: 7, str: HOSTILE}.get(kind, HOSTILE)


def all_views() -> list[type[View]]:
    """Every shape that the API answers with."""
    found = (vars(module).values() for module in (jobs, datasets, reports, pipelines))
    return sorted({kind for values in found for kind in values if isinstance(kind, type) and issubclass(kind, View)
                   and kind is not View}, key=lambda kind: kind.__name__)  # fmt: skip


Answer = type[View] | list[type[View]] | None
_ONE = "[^/]+"
ROUTES: list[tuple[str, str, Answer]] = [
    ("GET", "/jobs", jobs.Page), ("POST", "/jobs", jobs.JobView), ("POST", "/jobs/dry-run", jobs.DryRun),
    ("POST", "/jobs/cancel", jobs.CancelledView), ("GET", f"/jobs/{_ONE}", jobs.JobDetail),
    ("GET", f"/jobs/{_ONE}/why", jobs.Why), ("GET", f"/jobs/{_ONE}/metrics", jobs.MetricsView),
    ("GET", f"/jobs/{_ONE}/result", jobs.ResultView), ("GET", f"/jobs/{_ONE}/logs", [jobs.LogLine]),
    ("GET", f"/jobs/{_ONE}/lineage", datasets.LineageView), ("POST", f"/jobs/{_ONE}/cancel", jobs.JobView),
    ("POST", f"/jobs/{_ONE}/rerun", datasets.RerunView), ("GET", "/nodes", [jobs.NodeView]),
    ("POST", f"/nodes/{_ONE}/.*", jobs.NodeView), ("GET", "/tenants", [jobs.TenantView]),
    ("GET", f"/tenants/{_ONE}", jobs.TenantView), ("POST", "/tenants", jobs.NewTenant),
    ("PATCH", f"/tenants/{_ONE}", jobs.TenantView), ("GET", "/tokens", [jobs.TokenView]),
    ("POST", "/tokens", jobs.NewToken), ("DELETE", f"/tokens/{_ONE}", jobs.TokenView),
    ("GET", "/secrets", [jobs.SecretView]), ("PUT", f"/secrets/{_ONE}", jobs.SecretView),
    ("DELETE", f"/secrets/{_ONE}", None), ("GET", "/events", [jobs.EventView]), ("GET", "/state", jobs.StateView),
    ("GET", "/report", reports.Report), ("GET", "/usage", jobs.UsageView), ("GET", "/audit", [jobs.AuditView]),
    ("GET", "/whoami", jobs.WhoAmI), ("GET", "/datasets", [datasets.DataSetView]),
    ("GET", f"/datasets/{_ONE}", datasets.DataSetDetail), ("DELETE", f"/datasets/{_ONE}", [datasets.DataSetView]),
    ("GET", "/pipelines", pipelines.PipelinePage), ("POST", "/pipelines", pipelines.PipelineDetail),
    ("GET", f"/pipelines/{_ONE}", pipelines.PipelineDetail),
    ("POST", f"/pipelines/{_ONE}/cancel", pipelines.PipelineDetail), ("PUT", f"/bundles/{_ONE}", None),
    ("POST", "/shutdown", None),
]  # fmt: skip
STREAMS: list[tuple[str, type[View], str]] = [
    (f"/jobs/{_ONE}/logs", jobs.LogLine, "line"), ("/events/stream", jobs.EventView, "event"),
]  # fmt: skip


@dataclass
class Mood:
    """How the server answers at the moment."""

    state: str = "failed"
    error: int | None = None  # this status, with a problem whose every word is hostile
    raw: bytes | None = None  # instead of JSON
    overrides: dict[str, Callable[[], bytes]] = field(default_factory=dict)  # by the path's beginning: the bytes


class _Handler(BaseHTTPRequestHandler):
    mood: Mood
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0].removeprefix("/api/v1")
        if self.command == "HEAD":  # whether it has a bundle
            self.send_response(404)
            self.end_headers()
            return
        status, body, kind = self._body(path)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self, path: str) -> tuple[int, bytes, str]:
        for beginning, made in self.mood.overrides.items():
            if path.startswith(beginning):
                return 200, made(), "application/octet-stream"
        if self.mood.error is not None:
            words = dict.fromkeys(("type", "title", "detail", "field", "value", "fix"), HOSTILE)
            code = {404: "not-found", 409: "refused", 503: "unavailable"}.get(self.mood.error, HOSTILE)
            return self.mood.error, json.dumps(words | {"code": code}).encode(), "application/problem+json"
        if self.mood.raw is not None:
            return 200, self.mood.raw, "application/json"
        streamed = "stream" in self.path or "follow=true" in self.path
        for pattern, kind, name in STREAMS:
            if streamed and re.fullmatch(pattern, path):
                event, last = json.dumps(sample(kind, self.mood.state)), json.dumps({"detail": HOSTILE})
                ends = "end" if name == "line" else "error"  # events go on for ever, unless the server says no
                text = f"id: 1\nevent: {name}\ndata: {event}\n\nevent: {ends}\ndata: {last}\n\n"
                return 200, text.encode(), "text/event-stream"
        for method, pattern, answer in ROUTES:
            if method == self.command and re.fullmatch(pattern, path):
                return 200, json.dumps(_made(answer, self.mood.state)).encode(), "application/json"
        return 404, b"{}", "application/json"

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _answer

    def log_message(self, *_: Any) -> None:
        """Says nothing: what is written to stderr is what the test looks at."""


def _made(answer: Answer, state: str) -> Any:
    if answer is None:
        return {}
    return [sample(answer[0], state)] if isinstance(answer, list) else sample(answer, state)


@contextmanager
def hostile_server() -> Iterator[tuple[str, Mood]]:
    """Its address, and how it answers."""
    mood = Mood()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"mood": mood}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", mood
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
