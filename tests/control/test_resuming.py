"""A gang that resumed by itself, against the real loop: it is called away again, and charged throughout."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import Connection, select

from fairlead import wire
from fairlead.control.records import Generation, GenerationPhase, Job, JobPhase
from fairlead.control.store import events, generations, jobs
from fairlead.control.store.schema import usage
from tests.control.puppets import WITHIN_S, Body, Hurried, Platform, honest, quick_loop
from tests.control.stores import Opened, a_job, run


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with quick_loop(monkeypatch):
        yield


@pytest.fixture
def url(new_sqlite: Path, tmp_path: Path) -> str:
    shutil.copy(new_sqlite, tmp_path / "fairlead.db")
    return f"sqlite:///{tmp_path}/fairlead.db"


class Impatient:
    """A worker that refuses its first call to the second generation: it has resumed the first one meanwhile."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.told: list[wire.ToWorker] = []
        self._usual, self._resumed = honest(clock), False

    def __call__(self, told: wire.ToWorker | None) -> Sequence[Body]:
        self.told += [] if told is None else [told]
        match told:
            case wire.Join(generation=1):
                return [wire.Joined(1, 0)]
            case wire.Join(generation=2) if not self._resumed:
                self._resumed = True
                return [wire.Joined(1, 0, resumed=True)]
            case _:
                return self._usual(told)


def replanned(connection: Connection, name: str, now_s: float) -> None:
    """As a round decides it: the same worker under another plan."""
    first = generations.of_job(connection, name)[0]
    again = Generation(name, 2, GenerationPhase.PLANNED, first.members, "another plan", "better-plan", now_s)
    generations.insert(connection, again)
    jobs.update(connection, name, generation=2)


async def until_running(platform: Platform, name: str) -> Job:
    until_s = time.monotonic() + WITHIN_S
    while True:
        job = await platform.store.read(lambda connection: jobs.get(connection, name))
        if job is not None and job.phase is JobPhase.RUNNING:
            return job
        assert time.monotonic() < until_s, job
        await platform.controller.wait_for_news(0.05)


def test_a_call_that_came_too_late_is_made_again_when_the_gang_has_left_again(db: Opened) -> None:
    clock = Hurried()
    worker = Impatient(clock)
    job = a_job("resumes", "vision", submitted_s=clock(), max_workers=1, elastic=False)

    async def scene() -> Job:
        async with Platform(db.store, clock) as platform:
            name = await platform.submit(job, worker)
            await until_running(platform, name)
            await db.store.write(lambda connection: replanned(connection, name, clock()))
            platform.controller.nudge(name)
            (ended,) = await platform.ended(name)
            return ended

    ended = run(scene())
    assert ended.phase is JobPhase.SUCCEEDED, ended.message
    kinds = [(type(told).__name__, told.generation) for told in worker.told if not isinstance(told, wire.Quit)]
    assert kinds == [("Join", 1), ("Leave", 1), ("Join", 2), ("Leave", 1), ("Join", 2)]
    said = db.write(lambda connection: events.last(connection, job.id, "generation-resumed"))
    assert said is not None
    assert said.text == f"{job.id} resumed generation 1: it left, but was never told to join the next one"
    lines = db.write(charged, job.id)
    assert len(lines) > 1 and all(earlier == later for (_, earlier), (later, _) in itertools.pairwise(lines)), lines


def charged(connection: Connection, name: str) -> list[tuple[float, float]]:
    query = select(usage.c.from_s, usage.c.to_s).where(usage.c.job == name).order_by(usage.c.from_s)
    return [(row.from_s, row.to_s) for row in connection.execute(query)]
