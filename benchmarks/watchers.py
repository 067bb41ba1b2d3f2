"""What it costs others when many look on: idle watchers, busy ones, and clients that ask and never read."""

from __future__ import annotations

import http.client
import multiprocessing
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.managers import SyncManager
from typing import Any
from urllib.parse import urlsplit

import psutil

from benchmarks.http_load import Load
from benchmarks.platform import Platform, platform, wait_until
from benchmarks.reporter import Bench, main

IDLE_EVENTS, IDLE_LOGS = 900, 100
BUSY_EVENTS, BUSY_LOGS = 100, 50
DEAF = 12  # of each kind
EVENTS_PER_S, LINES_PER_S = 20.0, 100
LOG_BYTES, EVENTS = 30_000_000, 30_000
PER_TOKEN = 60
EVENT_STREAM = "/api/v1/events/stream?after={after}"
LINES = f"import time\nfor n in range(10**9): print('line', n, 'x' * 60, flush=True); time.sleep(1 / {LINES_PER_S})"


def run(bench: Bench) -> None:
    """CPU, memory and others' latency with watchers that idle, that are busy, and that never read."""
    with platform("3") as running:
        tokens = Tokens(running)
        control = running.control
        steady = _job(running, "steady", ["sleep", "86400"])
        _settle(20.0 if not bench.quick else 5.0)
        with bench.step("nobody watches"):
            alone = _cpu(control, 8.0 if bench.quick else 30.0)
        _idle(bench, running, tokens, steady, alone)
        _busy(bench, running, tokens)
        _deaf(bench, running, tokens)


class Tokens:
    """Enough of them: none may hold more than 64 streams."""

    def __init__(self, running: Platform) -> None:
        self._client, self._left = running.client, 0
        self._token = ""

    def take(self) -> str:
        if not self._left:
            self._token, self._left = self._client.create_token("admin", label="watcher").token, PER_TOKEN
        self._left -= 1
        return self._token


def _job(running: Platform, name: str, command: Sequence[str]) -> str:
    job = running.client.submit({"name": name, "tenant": "bench", "command": list(command)}, folder=None)
    wait_until(lambda: bool(job.refresh().view.state in ("running", "succeeded")), 60, f"{name} runs", every_s=0.1)
    return job.id


# ------------------------------------------------------------ watchers


def _idle(bench: Bench, running: Platform, tokens: Tokens, job: str, alone: float) -> None:
    paths = _paths(running, IDLE_EVENTS, job, IDLE_LOGS)
    with bench.step(f"{len(paths)} idle watchers"), watching(running, tokens, paths) as watchers:
        _settle(5.0)
        cost = _cpu(running.control, 15.0 if bench.quick else 60.0)
        wrong = watchers.closed
    bench.add("idle, nobody watches", alone, "% core")
    bench.add(f"idle, {IDLE_EVENTS} event streams and {IDLE_LOGS} log followers", cost, "% core")
    bench.add("of that, the watchers", max(0.0, cost - alone), "% core", target="<= 3")
    if wrong:
        bench.note(f"{wrong} idle watchers were closed")


def _busy(bench: Bench, running: Platform, tokens: Tokens) -> None:
    job = _job(running, "talker", ["python", "-c", LINES])
    seconds = 10.0 if bench.quick else 40.0
    with bench.step("events and lines, nobody watches"), happening(running):
        _settle(2.0)
        alone = _cpu(running.control, seconds)
        before = _latency(running, job, seconds)
    paths = _paths(running, BUSY_EVENTS, job, BUSY_LOGS)
    with (
        bench.step(f"{BUSY_EVENTS} event streams and {BUSY_LOGS} log followers"),
        watching(running, tokens, paths) as watchers, happening(running),
    ):  # fmt: skip
        _settle(2.0)
        told, begun_s = watchers.told, time.monotonic()
        cost = _cpu(running.control, seconds)
        rates = [(now - then) / (time.monotonic() - begun_s) for then, now in zip(told, watchers.told, strict=True)]
        load = _latency(running, job, seconds)
    events, lines = rates[:BUSY_EVENTS], rates[BUSY_EVENTS:]
    bench.add("events told to each stream, least", min(events), "/s", target=f">= {EVENTS_PER_S * 0.8:g}")
    bench.add("log lines told to each follower, least", min(lines), "/s", target=f">= {LINES_PER_S * 0.8:g}")
    bench.add("events and lines, nobody watches", alone, "% core")
    bench.add("the same, watched", cost, "% core")
    bench.add("of that, the watchers", max(0.0, cost - alone), "% core", target="<= 15")
    for part in (0.5, 0.99):
        bench.add(f"GET /jobs/JOB meanwhile, p{100 * part:g}", load.quantile(part) * 1e3, "ms", peer="nobody watches",
                  peer_value=before.quantile(part) * 1e3, target="<= 50" if part > 0.5 else None)  # fmt: skip
    running.client.cancel(job)


def _deaf(bench: Bench, running: Platform, tokens: Tokens) -> None:
    """Who asks for much and reads nothing."""
    job = _job(running, "long", ["sh", "-c", f"yes 'a line of a long log' | head -c {LOG_BYTES}; sleep 86400"])
    log = running.home / "jobs" / job / "logs" / "w0.log"
    wait_until(lambda: log.exists() and log.stat().st_size >= LOG_BYTES, 120, "a long log", every_s=0.2)
    _many_events(running)
    _settle(3.0)
    control = running.control
    before = control.memory_info().rss
    place = urlsplit(str(running.profile["url"]))
    paths = [f"/api/v1/jobs/{job}/logs?follow=true"] * DEAF + [EVENT_STREAM.format(after=0)] * DEAF
    clients: list[socket.socket] = []
    with bench.step(f"{2 * DEAF} clients that never read"):
        try:
            for path in paths:
                clients.append(socket.create_connection((str(place.hostname), place.port)))
                clients[-1].sendall(_request(path, tokens.take()))
            most, until_s = before, time.monotonic() + 15.0
            while time.monotonic() < until_s:
                time.sleep(0.1)
                most = max(most, control.memory_info().rss)
        finally:
            for client in clients:
                client.close()
    bench.add("resident memory before", before / 1e6, "MB")
    bench.add(f"{2 * DEAF} clients that never read add", (most - before) / 1e6, "MB", target="<= 20")


def _many_events(running: Platform) -> None:
    """Written beside the platform, as if it had been up for long."""
    database = sqlite3.connect(running.home / "fairlead.db", timeout=30.0)
    try:
        text = "a job was moved from one node to another because somebody else needed its place"
        rows = [(time.time(), "job-moved", f"{n}: {text}", "bench", None, None, '{"reason": "room"}')
                for n in range(EVENTS)]  # fmt: skip
        database.executemany("INSERT INTO events (time_s, kind, text, tenant, job, node, facts) "
                             "VALUES (?, ?, ?, ?, ?, ?, ?)", rows)  # fmt: skip
        database.commit()
    finally:
        database.close()


def _paths(running: Platform, events: int, job: str, logs: int) -> list[str]:
    newest = list(running.client.events(after=-1))
    after = newest[-1].id if newest else 0
    return [EVENT_STREAM.format(after=after)] * events + [f"/api/v1/jobs/{job}/logs?follow=true&tail=0"] * logs


def _request(path: str, token: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: platform\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


@dataclass(slots=True)
class Watchers:
    """What a process of their own has heard so far."""

    _shared: Any
    _count: int = 0

    @property
    def told(self) -> list[int]:
        """Of each: events."""
        return list(self._shared["told"])

    @property
    def closed(self) -> int:
        return int(self._shared["closed"])


@contextmanager
def watching(running: Platform, tokens: Tokens, paths: Sequence[str]) -> Iterator[Watchers]:
    """So many streams, opened and read by another process."""
    profile, context = running.profile, multiprocessing.get_context("spawn")
    asked = [(path, tokens.take()) for path in paths]
    with SyncManager(ctx=context) as manager, ProcessPoolExecutor(1, mp_context=context) as process:
        shared, stop = manager.dict(told=[0] * len(paths), closed=0, open=0), manager.Event()
        done = process.submit(_watch, str(profile["url"]), asked, shared, stop)
        try:
            wait_until(lambda: done.done() or shared["open"] == len(paths), 120, "all streams are open", every_s=0.1)
            yield Watchers(shared)
        finally:
            stop.set()
            done.result(30)


def _watch(url: str, asked: Sequence[tuple[str, str]], shared: Any, stop: Any) -> None:
    import asyncio

    place = urlsplit(url)
    told, closed = [0] * len(asked), 0

    async def watch(index: int, path: str, token: str) -> None:
        nonlocal closed
        reader, writer = await asyncio.open_connection(str(place.hostname), place.port)
        writer.write(_request(path, token))
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise RuntimeError(f"{path}: {head[:100]!r}")
        shared["open"] += 1
        while data := await reader.read(1 << 16):
            told[index] += data.count(b"data: ")
        closed += 1

    async def every() -> None:
        tasks = []
        for index, (path, token) in enumerate(asked):
            tasks.append(asyncio.create_task(watch(index, path, token)))
            if index % 20 == 19:
                await asyncio.sleep(0.05)
        while not stop.is_set():
            shared.update(told=list(told), closed=closed)
            await asyncio.sleep(0.25)
            for task in tasks:
                if task.done():
                    task.result()
        for task in tasks:
            task.cancel()

    asyncio.run(every())


# ------------------------------------------------------------ what happens meanwhile


@dataclass(slots=True)
class Happening:
    """Events at a steady rate: a node is taken out of use and back."""

    running: Platform
    _stop: threading.Event = field(default_factory=threading.Event)

    def go(self) -> None:
        client, turn, due_s = self.running.client, False, time.monotonic()
        while not self._stop.is_set():
            turn = not turn
            (client.cordon if turn else client.uncordon)("node-2")
            due_s += 1 / EVENTS_PER_S
            self._stop.wait(max(0.0, due_s - time.monotonic()))

    def end(self) -> None:
        self._stop.set()


@contextmanager
def happening(running: Platform) -> Iterator[None]:
    what = Happening(running)
    thread = threading.Thread(target=what.go)
    thread.start()
    try:
        yield
    finally:
        what.end()
        thread.join()


def _latency(running: Platform, job: str, seconds: float) -> Load:
    """Somebody else's requests, twenty a second."""
    profile = running.profile
    place = urlsplit(str(profile["url"]))
    line = http.client.HTTPConnection(str(place.hostname), place.port, timeout=30)
    each, failed, begun_s = [], 0, time.monotonic()
    for number in range(int(20 * seconds)):
        time.sleep(max(0.0, begun_s + number / 20 - time.monotonic()))
        sent_s = time.perf_counter()
        line.request("GET", f"/api/v1/jobs/{job}", headers={"Authorization": f"Bearer {profile['token']}"})
        answer = line.getresponse()
        answer.read()
        each.append(time.perf_counter() - sent_s)
        failed += answer.status != 200
    line.close()
    return Load(each, time.monotonic() - begun_s, failed)


def _settle(seconds: float) -> None:
    """What was still done about the last step is not measured."""
    until_s = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until_s, seconds + 10, "quiet", every_s=0.2)


def _cpu(process: psutil.Process, seconds: float) -> float:
    """Percent of a core that a process takes from now on."""
    before, begun_s = process.cpu_times(), time.monotonic()
    _settle(seconds)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - begun_s) * 100


if __name__ == "__main__":
    main("watchers", run)
