"""What ``fairlead queue`` lists while jobs change their state: each job once, and none left out."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.cli.commands.queue import _list_jobs
from fairlead.cli.local_status import JobPage, JobRow
from fairlead.control.records import ENDED, Job, JobPhase
from fairlead.control.store import jobs

from .stores import Opened, a_job, submit
from .test_retention import plan

ACTIVE = [phase for phase in JobPhase if phase not in ENDED]
MOVES = {JobPhase.RUNNING: JobPhase.QUEUED, JobPhase.QUEUED: JobPhase.RUNNING}


def asking(db: Opened, rows: int, before: Callable[[], None]) -> Callable[..., JobPage]:
    """Pages of at most so many rows from the real store; something happens before each of them is read."""

    def ask(*, state: str | None, tenant: str | None, limit: int, cursor: str | None, order: str) -> JobPage:
        before()
        phases = None if state is None else ACTIVE if state == "active" else state.split(",")
        found, following, total = db.read(
            jobs.page, tenant=tenant, phases=phases, limit=min(limit, rows), before=cursor, order=order
        )
        return JobPage([_row(job) for job in found], following, total)

    return ask


def _row(job: Job) -> JobRow:
    return JobRow(job.id, job.name, job.tenant, str(job.phase), job.submitted_s)


def stored(db: Opened, count: int, phase: Callable[[int], JobPhase]) -> list[str]:
    made = (a_job("job", id=f"job-{n:02}", submitted_s=1.0 + n, phase=phase(n)) for n in range(count))
    return [submit(db, job).id for job in made]


def listed(found: list[Any]) -> list[str]:
    return [job.id for job in found]


def test_a_job_that_goes_back_into_the_queue_between_two_looks_is_listed_once(db: Opened) -> None:
    names = stored(db, 4, lambda n: JobPhase.RUNNING)
    asked = []

    def preempt() -> None:
        asked.append(1)
        if len(asked) == 2:
            db.write(jobs.update, names[0], phase=JobPhase.QUEUED)

    for rows in (100, 2):
        found, total = _list_jobs(asking(db, rows, preempt), "active", None, 50)
        assert sorted(listed(found)) == names and total == len(names)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_moves_between_pages_each_job_is_listed_once(db: Opened, seed: int) -> None:
    draw = random.Random(seed)
    names = stored(db, 12, lambda n: draw.choice(list(MOVES)))
    still = draw.sample(names, k=len(names))

    def move() -> None:
        for _ in range(draw.randint(0, 3)):
            if still:
                job = db.read(jobs.get, name := still.pop())
                assert job is not None
                db.write(jobs.update, name, phase=MOVES[job.phase])

    found, total = _list_jobs(asking(db, 3, move), "active", None, 50)
    assert sorted(listed(found)) == names and total == len(names)


def test_those_that_run_come_first_then_the_oldest_that_waits_and_no_more_than_asked_for(db: Opened) -> None:
    phases = [JobPhase.QUEUED, JobPhase.STOPPING, JobPhase.QUEUED, JobPhase.RUNNING, JobPhase.SUCCEEDED]
    stored(db, len(phases), lambda n: phases[n])
    ask = asking(db, 100, lambda: None)
    assert listed(_list_jobs(ask, "active", None, 50)[0]) == ["job-03", "job-01", "job-00", "job-02"]
    found, total = _list_jobs(ask, None, None, 3)
    assert (listed(found), total) == (["job-03", "job-01", "job-00"], len(phases))


@pytest.mark.parametrize("tenant", [None, "vision"])
def test_a_page_of_the_queue_sorts_no_more_jobs_than_run_however_many_wait(db: Opened, tenant: str | None) -> None:
    if db.store._engines.reader.dialect.name != "sqlite":
        pytest.skip("only SQLite tells its plan in these words")
    waiting = plan(db, jobs.page, phases=["queued"], tenant=tenant, order="queue")
    assert not [step for step in waiting if "TEMP B-TREE" in step], waiting
    assert tenant or any("ix_jobs_queued" in step for step in waiting)
