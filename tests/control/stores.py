"""What tests of the store share: a clock that goes when told, and a store used without async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from fairlead.control.records import Job, JobPhase
from fairlead.control.store import Store, jobs
from fairlead.home import Home

T = TypeVar("T")


class Clock:
    """A clock that goes only when told to."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


class Opened:
    """A store that leads, used without async."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def write(self, work: Callable[..., T], *arguments: Any, **named: Any) -> T:
        return run(self.store.write(lambda conn: work(conn, *arguments, **named)))

    def read(self, work: Callable[..., T], *arguments: Any, **named: Any) -> T:
        return run(self.store.read(lambda conn: work(conn, *arguments, **named)))

    def sql(self, statement: str) -> Any:
        return self.write(lambda conn: conn.exec_driver_sql(statement).rowcount)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def a_job(name: str = "train", tenant: str = "vision", **fields: Any) -> Job:
    """A job that waits, but for what is said otherwise."""
    usual: dict[str, Any] = {
        "id": jobs.new_id(name), "phase": JobPhase.QUEUED, "submitted_s": 1_000_000.0, "submitted_by": "tok",
        "min_workers": 1, "max_workers": 2, "demand": {"cpu": 0.5}, "device_type": None, "priority": 0,
        "elastic": True, "training": True, "retries": 0,
    }  # fmt: skip
    return Job(**(usual | {"name": name, "tenant": tenant} | fields))


def left_by(db: Opened, home: Home, job: Job, files: Mapping[str, bytes]) -> Job:
    """Store a job with the files that it left in its folder; one without an end still runs."""
    phase = JobPhase.RUNNING if job.finished_s is None else JobPhase.SUCCEEDED
    stored = submit(db, replace(job, phase=phase))
    for name, content in files.items():
        place = home.job(stored.id) / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return stored


def submit(db: Opened, job: Job, key: str | None = None, digest: str = "d", **labels: str) -> Job:
    return db.write(jobs.insert, job, {"name": job.name}, labels, key, digest)[0]
