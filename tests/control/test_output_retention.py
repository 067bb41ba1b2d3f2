"""What a tenant's ended jobs keep together is bounded: the oldest go first, with a word, and nothing that runs."""

from __future__ import annotations

import os
import shutil
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event

from fairlead.control.records import Job
from fairlead.control.retention.output_retention import outputs_to_remove
from fairlead.control.retention.pruner import Pruner
from fairlead.control.store import audit, events, retained_outputs, tenants
from fairlead.control.store.row_deletion import JobEnd
from fairlead.home import Home
from tests.control.stores import Clock, Opened, a_job, left_by, run

MB = 1 << 20
DAY = 86400.0


def allow(db: Opened, size_bytes: int, **retention: float) -> None:
    db.write(tenants.update, "vision", policy={"kept": size_bytes, "retention": retention})


def put(db: Opened, home: Home, name: str, finished_s: float | None, output_mb: int = 1, tenant: str = "vision") -> Job:
    """A job that left so much, and a little log; one without an end still runs."""
    files = {"logs/file": b"x", "output/file": os.urandom(output_mb * MB)}
    return left_by(db, home, a_job(name, tenant, finished_s=finished_s, started_s=1.0), files)


def there(home: Home, *jobs: Job) -> list[bool]:
    return [(home.job(job.id) / "output" / "file").exists() for job in jobs]


def test_the_oldest_go_until_the_rest_is_within_what_is_allowed(db: Opened, home: Home, pruner: Pruner) -> None:
    jobs = [put(db, home, f"job-{number}", 100.0 + number) for number in (3, 1, 4, 2)]
    allow(db, 3 * MB)
    run(pruner.prune())
    assert there(home, *jobs) == [True, False, True, False]
    assert not home.job(jobs[1].id).exists(), "with its logs and its folder"
    run(pruner.prune())
    assert there(home, *jobs) == [True, False, True, False]


def test_what_runs_and_what_others_keep_is_neither_counted_nor_touched(db: Opened, home: Home, pruner: Pruner) -> None:
    running, other = put(db, home, "running", None, 5), put(db, home, "other", 1.0, 5, tenant="text")
    ended = put(db, home, "ended", 100.0)
    (home.jobs / "not-a-job").mkdir()
    allow(db, 2 * MB)
    run(pruner.prune())
    assert there(home, running, other, ended) == [True, True, True]
    allow(db, MB)
    run(pruner.prune())
    assert there(home, running, other, ended) == [True, True, False]


def test_each_that_goes_is_told_of_and_audited_with_the_reason(db: Opened, home: Home, pruner: Pruner) -> None:
    jobs = [put(db, home, f"job-{number}", 100.0 + number) for number in range(3)]
    allow(db, 2 * MB)
    run(pruner.prune())
    run(pruner.prune())
    told = [event for event in db.read(events.after, 0, 100) if event.kind == "pruned"]
    assert [event.job for event in told] == [jobs[0].id, jobs[1].id]
    assert "(1.1 MB) were removed" in told[0].text and "more than the 2.1 MB that they may keep" in told[0].text
    assert told[0].facts["reason"] == "disk" and told[0].facts["freed_bytes"] >= MB
    entries = [entry for entry in db.read(audit.after, 0, 100) if entry.action == "job.prune"]
    assert [(entry.actor, entry.target) for entry in entries] == [("platform", job.id) for job in jobs[:2]]


def test_what_its_time_took_away_makes_room(db: Opened, home: Home, pruner: Pruner, clock: Clock) -> None:
    old, young = put(db, home, "old", clock() - 2 * DAY, 3), put(db, home, "young", clock() - 1.0, 3)
    allow(db, 7 * MB)
    run(pruner.prune())
    assert there(home, old, young) == [True, True]
    allow(db, 4 * MB, results=DAY)
    run(pruner.prune())
    assert there(home, old, young) == [False, True]
    reasons = [event.facts.get("reason") for event in db.read(events.after, 0, 100) if event.kind == "pruned"]
    assert reasons == [None], "by time, not by size"


def test_an_upload_that_died_goes_and_one_that_lives_stays(home: Home, pruner: Pruner, clock: Clock) -> None:
    (home.bundles / "vision").mkdir()
    dead, alive, whole = (home.bundles / "vision" / name for name in ("a.0f.part", "b.1f.part", "c.tar.gz"))
    for path, age_s in ((dead, 2 * 3600.0), (alive, 60.0), (whole, 9e5)):
        path.write_text("x")
        os.utime(path, (clock() - age_s, clock() - age_s))
    run(pruner.prune())
    assert [path.exists() for path in (dead, alive, whole)] == [False, True, True]


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 100)), max_size=20), st.integers(0, 500))
def test_never_more_than_allowed_stays_and_never_more_than_needed_goes(
    left: list[tuple[float, int]], allowed: int
) -> None:
    ends = [(JobEnd(at_s, str(number)), size) for number, (at_s, size) in enumerate(left)]
    held = sum(size for _, size in ends)
    gone = outputs_to_remove(ends, held, allowed)
    stays = held - sum(size for _, size in gone)
    assert stays <= allowed
    assert not gone or stays + gone[-1][1] > allowed, "the last that went had to"
    assert gone == outputs_to_remove(ends[::-1], held, allowed)
    kept = [each for each in ends if each not in gone and each[1]]
    assert all(each < other for each in gone for other in kept), "older ones first"


# ---------------------------------------------------------------- what it costs


def test_a_job_that_left_nothing_keeps_no_folder_and_is_not_told_to_have_been_pruned(
    db: Opened, home: Home, pruner: Pruner
) -> None:
    silent = left_by(db, home, a_job("true", finished_s=5.0, started_s=1.0), {"logs/w0.log": b"", "code/a.py": b"x"})
    (home.job(silent.id) / "output").mkdir()
    told = left_by(db, home, a_job("echo", finished_s=5.0, started_s=1.0), {"logs/w0.log": b"hello", "logs/w1": b""})
    (home.job(told.id) / "output").mkdir()
    made = left_by(db, home, a_job("touch", finished_s=5.0, started_s=1.0), {"output/empty": b""})
    run(pruner.clean_ended())
    run(pruner.sweep())
    assert not home.job(silent.id).exists()
    assert [path.name for path in home.job(told.id).rglob("*")] == ["logs", "w0.log"]
    assert (home.job(made.id) / "output" / "empty").exists(), "a file that a job made is a result, empty or not"
    kept = {
        job.id: [db.read(retained_outputs.job_left, job.id, part) for part in ("logs", "output")]
        for job in (silent, told)
    }
    assert kept == {silent.id: [False, False], told.id: [True, False]}


def test_a_look_at_the_bounds_asks_neither_the_disk_nor_about_each_job(
    db: Opened, home: Home, pruner: Pruner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        put(db, home, f"job-{number}", 100.0 + number)
    run(pruner.prune())
    looked: list[object] = []
    monkeypatch.setattr("fairlead.agent.node.disk_usage.measure", looked.append)
    asked: list[str] = []
    queries = partial(asked.append)
    event.listen(db.store._engines.reader, "before_cursor_execute", lambda *given: queries(given[2]))
    run(pruner._outputs.enforce_quota(db.read(tenants.all_tenants)))
    assert looked == []
    assert [each for each in asked if "keepsakes" in each or "jobs" in each] == []
    next_leader = Pruner(db.store, home, Clock())
    asked.clear()
    run(next_leader.sweep())
    assert looked == [], "nor does a start"
    assert sum("FROM keepsakes" in each for each in asked) <= 3


def test_jobs_of_before_there_were_measurements_are_measured_once(db: Opened, home: Home, pruner: Pruner) -> None:
    there_, gone = put(db, home, "there", 100.0, 2), put(db, home, "gone", 101.0)
    shutil.rmtree(home.job(gone.id))
    for job in (there_, gone):
        db.sql(f"INSERT INTO keepsakes VALUES ('{job.id}', 'vision', {job.finished_s}, 'logs output', NULL)")
    run(pruner.sweep())
    sizes = {end.job: size for end, size in db.read(retained_outputs.oldest_outputs, "vision", 10)}
    assert list(sizes) == [there_.id] and sizes[there_.id] >= 2 * MB
    assert db.read(retained_outputs.job_left, gone.id, "logs"), "it had logs, and they were removed"
    assert db.read(retained_outputs.bytes_by_tenant) == {"vision": sizes[there_.id]}
