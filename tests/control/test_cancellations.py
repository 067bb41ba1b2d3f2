"""Promises about cancelling many jobs at once: all that fit and no other, in one transaction, however many."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, event

from fairlead.control.records import ENDED, JobPhase
from fairlead.control.store import cancellations, events, job_counts, jobs
from fairlead.control.store.cancellations import CancelFilter

from .stores import Opened, a_job


@pytest.fixture
def db(db: Opened) -> Opened:
    """Jobs of two tenants in all phases."""

    def fill(conn: Connection) -> None:
        for tenant in ("vision", "text"):
            for number, (phase, then) in enumerate((
                (JobPhase.QUEUED, None), (JobPhase.STARTING, None), (JobPhase.RUNNING, None),
                (JobPhase.STOPPING, JobPhase.QUEUED), (JobPhase.STOPPING, JobPhase.CANCELLED),
                (JobPhase.SUCCEEDED, None), (JobPhase.FAILED, None),
            )):  # fmt: skip
                name = f"sweep-{number}" if number < 3 else f"train_{number}"
                job = a_job(name, tenant, id=f"{tenant}-{number}", phase=phase, then=then, submitted_s=1e6 + number)
                labels = {"team": "a" if number % 2 else "b", "odd.key": "x y"}
                jobs.insert(conn, job, {"name": name}, labels, None, "digest")

    db.write(fill)
    return db


def found(db: Opened, **meant: Any) -> list[str]:
    return sorted(job.id for job in db.read(cancellations.find, CancelFilter(**meant))[0])


def test_what_has_ended_or_ends_as_cancelled_is_not_meant(db: Opened) -> None:
    assert found(db, tenant="vision") == ["vision-0", "vision-1", "vision-2", "vision-3"]
    assert len(found(db)) == 8


@pytest.mark.parametrize(("meant", "ids"), [
    ({"phases": [JobPhase.QUEUED]}, ["vision-0"]),
    ({"phases": [JobPhase.QUEUED, JobPhase.RUNNING]}, ["vision-0", "vision-2"]),
    ({"phases": [JobPhase.SUCCEEDED]}, []),
    ({"name": "sweep-*"}, ["vision-0", "vision-1", "vision-2"]), ({"name": "sweep-1"}, ["vision-1"]),
    ({"name": "*_3"}, ["vision-3"]), ({"name": "sweep_1"}, []), ({"name": "%"}, []), ({"name": "s*p-2"}, ["vision-2"]),
    ({"labels": {"team": "a"}}, ["vision-1", "vision-3"]), ({"labels": {"team": "c"}}, []),
    ({"labels": {"team": "b", "odd.key": "x y"}}, ["vision-0", "vision-2"]), ({"labels": {"no": ""}}, []),
    ({"labels": {"team": "a"}, "name": "sweep-*", "phases": [JobPhase.STARTING]}, ["vision-1"]),
])  # fmt: skip
def test_a_job_is_meant_when_it_fits_all_that_is_said(db: Opened, meant: dict[str, Any], ids: list[str]) -> None:
    assert found(db, tenant="vision", **meant) == ids


def test_what_waits_has_ended_and_what_runs_is_told_to_stop(db: Opened) -> None:
    meant, _ = db.read(cancellations.find, CancelFilter(tenant="vision"))
    db.write(cancellations.cancel, meant, "tok", 5.0)
    after = {job.id: job for job in db.read(lambda conn: jobs.page(conn, limit=99)[0])}
    assert (after["vision-0"].phase, after["vision-0"].finished_s) == (JobPhase.CANCELLED, 5.0)
    for job in ("vision-1", "vision-2", "vision-3"):
        assert (after[job].phase, after[job].then) == (JobPhase.STOPPING, JobPhase.CANCELLED)
        assert after[job].message == "cancelled by tok"
    assert all(after[f"text-{n}"].then is not JobPhase.CANCELLED for n in range(4))
    told = [each for each in db.read(events.after, 0, 100) if each.kind == "job-cancelled"]
    assert sorted(each.job or "" for each in told) == ["vision-0", "vision-1", "vision-2", "vision-3"]
    assert {each.tenant for each in told} == {"vision"}
    assert db.read(cancellations.find, CancelFilter(tenant="vision")) == ([], False)


def test_thousands_of_jobs_take_bounded_statements_and_few_of_them(db: Opened) -> None:
    def fill(conn: Connection) -> None:
        for number in range(1_700):
            jobs.insert(conn, a_job("many", "text", id=f"many-{number:06}"), {}, {}, None, "digest")

    db.write(fill)
    seen: list[int] = []

    def cancel(conn: Connection) -> int:
        def count(_c: Any, _cursor: Any, _s: str, parameters: Any, _x: Any, executemany: bool) -> None:
            seen.append(len(parameters))

        event.listen(conn, "before_cursor_execute", count)
        some, _ = cancellations.find(conn, CancelFilter(name="many"))
        cancellations.cancel(conn, some, "tok", 5.0)
        return len(some)

    assert db.write(cancel) == 1_700
    assert len(seen) < 20
    assert max(seen) < 520
    phases = db.read(lambda conn: job_counts.counts_by_tenant(conn)["text"])
    assert phases[JobPhase.CANCELLED] == 1_700
    assert JobPhase.CANCELLED in ENDED


def test_more_than_one_transaction_takes_is_said(db: Opened) -> None:
    some, more = db.read(cancellations.find, CancelFilter(), 3)
    assert (len(some), more) == (3, True)
    assert [job.id for job in some] == ["text-0", "vision-0", "text-1"]
    assert db.read(cancellations.find, CancelFilter(), 8)[1] is False
