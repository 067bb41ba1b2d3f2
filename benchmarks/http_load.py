"""A client in a process of its own that sends many requests over several connections at once."""

from __future__ import annotations

import http.client
import json
import multiprocessing
import time
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Load:
    """How it went: seconds per request, and seconds for all of them together."""

    each_s: list[float]
    all_s: float
    failed: int

    @property
    def per_s(self) -> float:
        return len(self.each_s) / self.all_s

    def quantile(self, part: float) -> float:
        ordered = sorted(self.each_s)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


@dataclass(frozen=True, slots=True)
class Ask:
    """What each request is: the same place each time, for jobs with a key and a name of its own."""

    url: str
    token: str
    method: str
    path: str
    body: str | None = None


def send(ask: Ask, count: int, connections: int, per_s: float | None = None) -> Load:
    """Send so many requests from another process, spread over the connections.

    ``per_s``: at this steady rate, whatever the answers take; a request that has to wait for a connection has waited.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(_send, ask, count, connections, per_s).result()


def _send(ask: Ask, count: int, connections: int, per_s: float | None) -> Load:
    shares = [range(place, count, connections) for place in range(connections)]
    with ThreadPoolExecutor(connections) as threads:
        begun_s = time.perf_counter()

        def connection(share: range) -> tuple[list[float], int]:
            due = (None if per_s is None else begun_s + number / per_s for number in share)
            return _connection(ask, due)

        parts: Sequence[tuple[list[float], int]] = list(threads.map(connection, shares))
        all_s = time.perf_counter() - begun_s
    return Load([each for part, _ in parts for each in part], all_s, sum(failed for _, failed in parts))


def _connection(ask: Ask, due: Iterable[float | None]) -> tuple[list[float], int]:
    """One connection's requests, one after the other: seconds each, and how many were not answered well."""
    place = urlsplit(ask.url)
    line = http.client.HTTPConnection(str(place.hostname), place.port, timeout=30)
    each: list[float] = []
    failed = 0
    for due_s in due:
        headers = {"Authorization": f"Bearer {ask.token}", "Content-Type": "application/json"}
        if ask.body is not None:
            headers["Idempotency-Key"] = uuid.uuid4().hex
        begun_s = time.perf_counter() if due_s is None else due_s
        time.sleep(max(0.0, begun_s - time.perf_counter()))
        line.request(ask.method, ask.path, ask.body, headers)
        answer = line.getresponse()
        answer.read()
        each.append(time.perf_counter() - begun_s)
        failed += answer.status >= 300
    line.close()
    return each, failed


def job_body(tenant: str) -> str:
    """A plain job as people submit them."""
    spec = {"name": "queued", "tenant": tenant, "command": ["python", "-c", "print('hello')"], "workers": "1:2",
            "labels": {"team": "bench"}}  # fmt: skip
    return json.dumps(spec)
