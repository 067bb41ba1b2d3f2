"""The platform does not get slower by being old: rows go when their time is up, sums stay, the disk is freed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, MetaData, Table, event, func, select
from sqlalchemy.exc import DBAPIError

from fairlead.control.accounting import budgets
from fairlead.control.accounting.report import fairness, platform_report, shares_over_time
from fairlead.control.accounting.shares import DemandSpan, Window, shares_view
from fairlead.control.records import GenerationPhase, JobPhase, Usage
from fairlead.control.retention.pruner import Pruner
from fairlead.control.store import (
    Store,
    audit,
    events,
    generations,
    job_counts,
    jobs,
    ledger,
    lineage,
    metrics,
    migrate,
    retained_outputs,
    retention_marks,
    retention_schema,
    row_deletion,
    schema,
    tenants,
    usage_spans,
    vacuum,
)
from fairlead.control.store import (
    row_mapping as rows,
)
from fairlead.control.store.connections import connect
from fairlead.control.store.pipeline_schema import pipelines, stages
from fairlead.control.store.usage_breakdown import break_down
from fairlead.errors import Conflict
from fairlead.home import Home
from fairlead.specs import Retention

from . import made
from .stores import Clock, Opened, a_job, run, submit

HOUR, DAY = 3600.0, 86400.0
NOW = 400 * DAY + 5 * HOUR + 123.0


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.now_s = NOW
    return clock


def count(db: Opened, table: Table) -> int:
    return int(db.read(lambda conn: conn.execute(select(func.count()).select_from(table)).scalar_one()))


def keep(db: Opened, **retention: float) -> None:
    db.write(tenants.update, "vision", policy={"retention": retention})


def ended(db: Opened, name: str, finished_s: float, tenant: str = "vision", **fields: Any) -> str:
    """A job that has ended, with everything that the store knows of one."""
    job = submit(db, a_job(name, tenant, phase=JobPhase.RUNNING, submitted_s=finished_s - 100.0, **fields), team="x")

    def work(conn: Connection) -> None:
        over = {"phase": GenerationPhase.ENDED, "ended_s": finished_s, "job": job.id}
        generations.insert(conn, made.generation(("w0", "node-0"), **over))
        metrics.append(conn, job.id, 1, [{"step": 1, "loss": 0.5}])
        events.append(conn, time_s=finished_s, kind="job-succeeded", text="it ended", tenant=tenant, job=job.id)
        lineage.begin(conn, job.id, tenant, None, finished_s)
        lineage.record_inputs(conn, job.id, tenant, [("digits", "v1")])
        ledger.append(conn, [replace(made.usage(tenant, 2, finished_s - 90.0, finished_s, 50.0), job=job.id)])
        jobs.update(conn, job.id, phase=JobPhase.SUCCEEDED, finished_s=finished_s)

    db.write(work)
    return job.id


# ---------------------------------------------------------------- jobs


JOB_TABLES = ("jobs", "submissions", "generations", "metrics", "lineage", "lineage_inputs", "usage_hours", "keepsakes")


def test_of_a_job_whose_time_is_up_no_row_is_left_but_what_it_used(
    db: Opened, home: Home, pruner: Pruner, clock: Clock
) -> None:
    old, young = ended(db, "old", NOW - 40 * DAY), ended(db, "young", NOW - 20 * DAY)
    other = ended(db, "other", NOW - 40 * DAY, tenant="text")
    (home.job(old) / "logs").mkdir(parents=True)
    (home.job(old) / "logs" / "w0.log").write_text("x")
    before = db.read(break_down, ["tenant", "user", "node", "device"], 0.0, NOW)
    keep(db, jobs=30 * DAY)
    run(pruner.prune())
    for name in JOB_TABLES:
        table = schema.metadata.tables[name]
        column = table.c.id if name == "jobs" else table.c.job
        found = set(db.read(lambda conn, column=column: list(conn.execute(select(column)).scalars())))
        assert old not in found and (name == "keepsakes" or {young, other} <= found), name
    assert not home.job(old).exists()
    told = [each for each in db.read(events.after, 0, 100) if each.kind == "pruned"]
    assert [each.text for each in told] == ["the rows of 1 job of vision were removed: they are kept for 30d"]
    assert not [each for each in db.read(events.after, 0, 100) if each.job == old]
    assert db.read(break_down, ["tenant", "user", "node", "device"], 0.0, NOW) == before
    assert db.read(job_counts.counts_by_tenant) == {"vision": {"succeeded": 1}, "text": {"succeeded": 1}}
    by_job, whole = db.read(break_down, ["job"], 0.0, NOW)
    assert [line.jobs for line in by_job if line.keys == ("",)] == [1] and whole.jobs == 3


def test_rows_stay_as_long_as_any_of_the_rest_unless_it_is_said_otherwise() -> None:
    assert Retention(logs=1.0, metrics=3.0, results=2.0).rows == 3.0
    assert Retention(logs=1.0, metrics=3.0).rows is None, "results are kept for ever, so the job is known for ever"
    assert Retention(jobs=5.0).rows == 5.0
    assert Retention(logs=1.0, metrics=3.0, results=2.0, jobs=1.0).rows == 1.0


def test_a_key_is_good_for_two_days_at_least_and_then_as_long_as_its_job_is_known(
    db: Opened, pruner: Pruner, clock: Clock
) -> None:
    job = a_job("once", phase=JobPhase.SUCCEEDED, submitted_s=NOW - 5.0, finished_s=NOW)
    first = submit(db, job, "key", "digest")
    keep(db, jobs=60.0)
    clock.advance(DAY)
    run(pruner.prune())
    assert submit(db, job, "key", "digest").id == first.id
    with pytest.raises(Conflict):
        submit(db, job, "key", "another")
    clock.advance(1.5 * DAY)
    run(pruner.prune())
    again = submit(db, replace(job, id="once-another"), "key", "another")
    assert again.id == "once-another", "the job is not known any more, and neither is its key"


def test_a_stage_is_known_as_long_as_its_pipeline(db: Opened, pruner: Pruner, clock: Clock) -> None:
    stage = ended(db, "stage", NOW - 40 * DAY)

    def work(conn: Connection) -> None:
        row = {"id": "pipe-1", "tenant": "vision", "name": "pipe", "phase": "succeeded", "submitted_s": 1.0,
               "submitted_by": "tok", "finished_s": NOW - 10 * DAY, "request_digest": "d", "spec": {}}  # fmt: skip
        conn.execute(pipelines.insert(), row)
        row = {"pipeline": "pipe-1", "name": "a", "tenant": "vision", "fingerprint": "f", "phase": "done", "job": stage,
               "kept": True, "rebuilds": 0, "fresh": False}  # fmt: skip
        conn.execute(stages.insert(), row)

    db.write(work)
    keep(db, jobs=30 * DAY)
    run(pruner.prune())
    assert db.read(jobs.get, stage) is not None
    clock.advance(25 * DAY)
    run(pruner.prune())
    assert db.read(jobs.get, stage) is None
    assert (count(db, pipelines), count(db, stages)) == (0, 0)


# ---------------------------------------------------------------- ledger and audit


def test_lines_and_entries_go_when_they_were_given_up_and_not_before(db: Opened, pruner: Pruner, clock: Clock) -> None:
    db.write(ledger.append, [made.usage("vision", 1, NOW - 30 * HOUR, NOW - 29.9 * HOUR),
                             made.usage("vision", 1, NOW - 20 * HOUR, NOW - 19.9 * HOUR)])  # fmt: skip
    for time_s in (NOW - 401 * DAY, NOW - 399 * DAY):
        db.write(audit.append, time_s=time_s, actor="tok", action="job.cancel", target="old")
        db.write(events.append, time_s=time_s, kind="node-lost", text="lost", node="node-0")
    run(pruner.prune())
    assert (count(db, schema.usage), count(db, schema.audit), count(db, schema.events)) == (1, 1, 1)
    for statement in ("DELETE FROM usage", "DELETE FROM audit", "UPDATE usage SET id = id + 9"):
        with pytest.raises(DBAPIError, match="append-only"):
            db.sql(statement)
    assert (count(db, schema.usage), count(db, schema.audit)) == (1, 1)


@pytest.mark.parametrize(("keep_s", "left"), [(30 * DAY, 1), (500 * DAY, 2), (math.inf, 2)])
def test_the_audit_log_is_kept_for_as_long_as_was_said(
    db: Opened, home: Home, clock: Clock, keep_s: float, left: int
) -> None:
    clock.advance(200 * DAY)
    for time_s in (clock() - 410 * DAY, clock() - 1 * DAY):
        db.write(audit.append, time_s=time_s, actor="tok", action="job.cancel", target="old")
        db.write(events.append, time_s=time_s, kind="node-lost", text="lost", node="node-0")
    run(Pruner(db.store, home, clock, keep_audit_s=keep_s).prune())
    assert (count(db, schema.audit), count(db, schema.events)) == (left, left)
    with pytest.raises(DBAPIError, match="append-only"):
        db.sql("DELETE FROM audit")


def test_what_was_given_up_never_comes_back(db: Opened) -> None:
    assert db.write(retention_marks.advance, retention_marks.LINES, 500.0) == 500.0
    assert db.write(retention_marks.advance, retention_marks.LINES, 400.0) == 500.0
    assert db.read(retention_marks.kept_since, retention_marks.LINES) == 500.0
    assert db.read(retention_marks.kept_since, retention_marks.AUDIT) == 0.0


def test_sums_of_spans_go_when_longer_ones_do_and_days_stay(db: Opened, pruner: Pruner, clock: Clock) -> None:
    for days in (1, 10, 100):
        ended(db, f"job-{days}", NOW - days * DAY)
    run(pruner.prune())
    spans = retention_schema.usage_spans.c
    kept = db.read(lambda conn: conn.execute(select(spans.span_s, spans.number)).all())
    assert sorted({(span_s, round((NOW - number * span_s) / DAY)) for span_s, number in kept}) == [
        (300, 1), (3600, 1), (3600, 10),
    ]  # fmt: skip
    assert count(db, schema.usage_days) == 3
    assert db.read(ledger.totals, 0.0, NOW) == {"vision": 3 * 180.0}


# A line is begun so many seconds ago, and lasts so long.
LINES = st.lists(
    st.builds(
        lambda ago_s, length_s, devices, tenant, job, node: Usage(
            f"{tenant}-{job}", tenant, "tok", 1, f"node-{node}", "cpu", devices, 1.0,
            NOW - ago_s - length_s, NOW - ago_s, length_s,
        ),
        st.floats(0.0, 20 * DAY), st.floats(1.0, 9000.0), st.integers(1, 4), st.sampled_from(["vision", "text"]),
        st.integers(0, 5), st.integers(0, 1),
    ),
    min_size=1, max_size=25,
)  # fmt: skip


@pytest.fixture(scope="module")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sums") / "fairlead.db"
    run(Store.open(f"sqlite:///{file}").close())
    return file


@given(LINES)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sums_before_pruning_are_those_after(new_store: Path, lines: list[Usage]) -> None:
    """All in one transaction that is taken back, on the store itself: whole days to the last digit, shares closely."""
    engines = connect(f"sqlite:///{new_store}")
    try:
        with engines.writer.connect() as conn:
            ledger.append(conn, lines)
            before, attained = answers(conn), ledger.attained(conn, NOW, 12 * HOUR)
            row_deletion.advance_marks(conn, NOW)
            while row_deletion.drop_lines(conn, 5) + row_deletion.drop_spans(conn, 12):
                pass
            assert answers(conn) == pytest.approx(before, rel=1e-9, abs=1e-6)
            assert ledger.attained(conn, NOW, 12 * HOUR) == pytest.approx(attained, rel=5e-3, abs=1e-3)
            young = {line.job for line in lines if line.to_s >= NOW - 2 * DAY}
            old = sorted({line.job for line in lines} - young)
            row_deletion._add_pruned_usage(conn, old)
            conn.execute(schema.usage_hours.delete().where(schema.usage_hours.c.job.in_(old)))
            assert answers(conn) == pytest.approx(before, rel=1e-9, abs=1e-6)
            assert ledger.attained(conn, NOW, 12 * HOUR) == pytest.approx(attained, rel=5e-3, abs=1e-3)
            conn.rollback()
    finally:
        engines.dispose()


def answers(conn: Connection) -> dict[str, float]:
    """What report, budgets and usage say of whole days, and of the last one."""
    midnight_s = NOW // DAY * DAY
    found: dict[str, float] = {}
    for days in (0, 1, 5, 30):
        for tenant, device_s in ledger.totals(conn, midnight_s - days * DAY, NOW).items():
            found[f"totals {days} {tenant}"] = device_s
        used, whole = break_down(conn, ["tenant", "user", "node", "device"], midnight_s - days * DAY, NOW)
        found |= {f"used {days} {line.keys}": line.device_s + line.cpu_s for line in used}
        if days == 30:
            found["jobs"] = whole.jobs
    since_s = NOW - DAY
    for line in usage_spans.totals_by_node(conn, since_s, NOW):
        found[f"node {line.tenant} {line.node}"] = line.device_s
    team = [made.tenant("vision", 2.0), made.tenant("text", 1.0, 1)]
    found["fairness"] = fairness(team, usage_spans.spans_by_tenant(conn, since_s, NOW)) or 0.0
    for number, point in enumerate(shares_over_time(usage_spans.spans_by_tenant(conn, since_s, NOW))):
        found |= {f"share {number} {name}": held for name, held in dict(point["devices"]).items()}  # type: ignore[call-overload]
    return found


def test_a_part_of_an_hour_whose_lines_are_gone_counts_as_that_part_of_its_sum(
    db: Opened, pruner: Pruner, clock: Clock
) -> None:
    begin_s = (NOW - 50 * HOUR) // HOUR * HOUR
    db.write(ledger.append, [made.usage("vision", 2, begin_s, begin_s + 4 * HOUR)])
    asked = begin_s + 0.25 * HOUR, begin_s + 2.5 * HOUR
    before = db.read(ledger.totals, *asked)
    run(pruner.prune())
    assert count(db, schema.usage) == 0
    assert db.read(ledger.totals, *asked) == pytest.approx(before) == {"vision": 2 * 2.25 * HOUR}


def test_budgets_count_what_jobs_used_whose_rows_are_gone(db: Opened, pruner: Pruner, clock: Clock) -> None:
    clock.now_s = now_s = 530 * DAY  # in the midst of a month
    ended(db, "old", now_s - 5 * DAY)
    db.write(tenants.update, "vision", budget={"device_hours": 1.0, "per": "month"})

    def used_hours(conn: Connection) -> float:
        return budgets.spendings(conn, tenants.all_tenants(conn), now_s)["vision"].used_hours

    used = db.read(used_hours)
    keep(db, jobs=3 * DAY)
    run(pruner.prune())
    assert count(db, schema.jobs) == 0
    assert db.read(used_hours) == used > 0


# ---------------------------------------------------------------- what is asked does not grow with age


def plan(db: Opened, work: Callable[..., Any], *given: Any, **named: Any) -> list[str]:
    """How SQLite carries out each query of this work, in its own words."""
    found: list[str] = []

    def explain(conn: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT") or statement.startswith("DELETE"):
            rows = conn.connection.driver_connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            found.extend(str(row[3]) for row in rows)

    engine = db.store._engines.reader
    event.listen(engine, "before_cursor_execute", explain)
    try:
        db.read(work, *given, **named)
    finally:
        event.remove(engine, "before_cursor_execute", explain)
    return found


LARGE = ("jobs", "submissions", "generations", "events", "metrics", "usage", "usage_hours", "usage_spans", "audit",
         "keepsakes", "stages", "pipelines", "lineage", "lineage_inputs", "wishes")  # fmt: skip


@pytest.mark.parametrize(
    "work",
    [
        jobs.active,
        jobs.in_flight,
        job_counts.counts_by_tenant,
        job_counts.counts_by_submitter,
        lambda conn: job_counts.count_unfinished(conn, "vision"),
        lambda conn: jobs.page(conn, limit=10),
        lambda conn: jobs.page(conn, tenant="vision", limit=10),
        lambda conn: jobs.page(conn, phases=["queued", "running"], limit=10),
        lambda conn: jobs.labels_of(conn, ["a", "b"]),
        lambda conn: jobs.find(conn, "train", "vision"),
        lambda conn: generations.live_by_job(conn, {"a"}),
        generations.unmetered_devices,
        lambda conn: events.after(conn, 5, 10),
        lambda conn: events.after(conn, 5, 10, "vision"),
        lambda conn: events.last(conn, "a", "job-preempted"),
        lambda conn: events.budgets_used_up(conn, NOW - DAY),
        lambda conn: ledger.hours_of_job(conn, "a"),
        lambda conn: ledger.attained(conn, NOW, 12 * HOUR),
        lambda conn: ledger.totals(conn, NOW // DAY * DAY, NOW),
        lambda conn: usage_spans.spans_by_tenant(conn, NOW - DAY, NOW),
        lambda conn: usage_spans.totals_by_node(conn, NOW - DAY, NOW),
        lambda conn: usage_spans.totals_by_tenant(conn, NOW - 31 * DAY, NOW),
        lambda conn: usage_spans.demand_periods(conn, NOW - 31 * DAY, NOW),
        lambda conn: usage_spans.demand_periods(conn, NOW - HOUR, NOW),
        lambda conn: row_deletion.ended_between(conn, "vision", row_deletion.FIRST, NOW, 50),
        lambda conn: row_deletion.prunable_jobs(conn, "vision", NOW, 50),
        lambda conn: row_deletion.idle_bundles(conn, "vision", NOW),
    ],
)  # fmt: skip
def test_no_question_of_every_day_walks_over_a_table_that_grows(
    new_store: Path, clock: Clock, work: Callable[[Connection], Any]
) -> None:
    store = Store.open(f"sqlite:///{new_store}", clock=clock)
    try:
        db = Opened(store)
        run(store.acquire_lease("test", 1e9))
        if not db.read(tenants.all_tenants):
            db.write(lambda conn: conn.execute(schema.tenants.insert(), tenant_row()))
            submit(db, a_job("train"))
        steps = plan(db, work)
        assert steps
        # An index in the order that is wanted, read until there is enough, is not a walk: it has a limit.
        ordered = ("ix_jobs_submitted_s_id", "sqlite_autoindex_tenants")
        walks = [step for step in steps if step.split()[:2] in [["SCAN", name] for name in LARGE]
                 and not any(index in step for index in ordered)]  # fmt: skip
        assert walks == [], steps
    finally:
        run(store.release_lease())
        run(store.close())


ENDED_PHASES = ["succeeded", "failed", "cancelled"]


@pytest.mark.parametrize("asked", [
    {"order": "queue"},
    {"order": "queue", "phases": ENDED_PHASES},
    {"order": "queue", "phases": ENDED_PHASES, "tenant": "vision"},
    {"order": "newest", "phases": ENDED_PHASES},
    {"order": "oldest", "phases": ENDED_PHASES, "tenant": "vision"},
])  # fmt: skip
def test_a_page_of_ended_jobs_is_read_in_order_and_not_sorted(
    new_store: Path, clock: Clock, asked: dict[str, Any]
) -> None:
    store = Store.open(f"sqlite:///{new_store}", clock=clock)
    try:
        steps = plan(Opened(store), jobs.page, limit=10, **asked)
    finally:
        run(store.close())
    sorts = [step for step in steps if "ORDER BY" in step]
    assert steps and len(sorts) == (1 if "phases" not in asked else 0), steps  # jobs under way are few and sorted


def tenant_row() -> dict[str, Any]:
    empty: dict[str, Any] = {"sla": {}, "policy": {}, "budget": {}, "guarantee": {}, "most": {}}
    return {"name": "vision", "weight": 1.0, "number": 0, "created_s": 0.0} | empty


def test_a_report_reads_as_many_rows_after_ten_times_the_jobs(db: Opened) -> None:
    def lines(many: int) -> list[Usage]:
        return [replace(made.usage("vision", 1, NOW - HOUR + at * 3.0, NOW - HOUR + at * 3.0 + 2.0), job=f"j{at}")
                for at in range(many)]  # fmt: skip

    db.write(ledger.append, lines(100))
    few = len(db.read(usage_spans.spans_by_tenant, NOW - DAY, NOW))
    db.write(ledger.append, lines(1000))
    assert len(db.read(usage_spans.spans_by_tenant, NOW - DAY, NOW)) <= max(few, 13)
    assert len(db.read(usage_spans.totals_by_node, NOW - DAY, NOW)) == 1


def test_a_chart_of_a_month_is_made_of_as_many_lines_as_it_shows(db: Opened) -> None:
    db.write(ledger.append, [made.usage("vision", 2, NOW - 30 * DAY, NOW)])
    ended(db, "long", NOW)
    db.write(usage_spans.record_demand, "vision", NOW - 30 * DAY, NOW)
    window = Window(NOW - 31 * DAY, NOW, 100)
    lines = db.read(usage_spans.spans_by_tenant, window.since_s, NOW, window.step_s)
    marks = db.read(usage_spans.demand_periods, window.since_s, NOW, window.step_s)
    assert len(lines) <= 260 and len(marks) <= 260
    view = shares_view(db.read(tenants.all_tenants), [DemandSpan(*mark) for mark in marks], lines, 4, window)
    held, entitled = next((line.held, line.entitlement) for line in view.tenants if line.tenant == "vision")
    assert sum(held) * window.step_s == pytest.approx(2 * 30 * DAY, rel=1e-3)
    assert held[0] == 0.0 and held[50] == 2.0 and entitled[0] == 0.0 and entitled[50] == 4.0


def test_counts_of_ended_jobs_are_kept_not_counted(db: Opened) -> None:
    job = submit(db, a_job("one"))
    assert db.read(jobs.page, tenant="vision")[2] == 1
    db.write(jobs.update, job.id, phase=JobPhase.FAILED, finished_s=NOW)
    db.write(jobs.update, job.id, phase=JobPhase.FAILED, message="said again")
    submit(db, a_job("two", phase=JobPhase.SUCCEEDED, finished_s=NOW))
    assert db.read(job_counts.counts_by_tenant) == {"vision": {"failed": 1, "succeeded": 1}}
    assert db.read(jobs.page, phases=["failed"])[2] == 1
    assert db.read(jobs.page, tenant="text")[2] == 0
    assert db.read(jobs.page)[2] == 2


def test_the_report_says_the_same_from_sums_as_from_lines(db: Opened) -> None:
    lines = [made.usage("vision", 2, NOW - 5 * HOUR, NOW - 2 * HOUR, 900.0), made.usage("text", 1, NOW - 4 * HOUR, NOW)]
    db.write(ledger.append, lines)
    teams, capacity = db.read(tenants.all_tenants), {"cpu": 4.0, "device": 4.0}
    said = [platform_report(teams, [], held, capacity, NOW - DAY, NOW)
            for held in (lines, db.read(usage_spans.spans_by_tenant, NOW - DAY, NOW))]  # fmt: skip
    first, second = (report.model_dump(exclude={"shares"}) for report in said)
    assert first == second


# ---------------------------------------------------------------- the disk


def pragma(store: Store, name: str) -> int:
    found = run(store.write(lambda conn: conn.exec_driver_sql(f"PRAGMA {name}").scalar_one(), unfenced=True))
    return int(found)


def fill(db: Opened, rows: int = 3000) -> None:
    def work(conn: Connection) -> None:
        for number in range(rows):
            events.append(conn, time_s=float(number), kind="x", text="y" * 1000, tenant="vision")

    db.write(work)


def test_what_rows_took_is_given_back_to_the_disk(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/fairlead.db")
    run(store.acquire_lease("test", 1e9))
    db = Opened(store)
    fill(db)
    full = pragma(store, "page_count")
    db.write(lambda conn: conn.execute(schema.events.delete()))
    assert pragma(store, "page_count") == full
    steps = 0
    while db.write(vacuum.free_pages):
        steps += 1
    assert pragma(store, "page_count") < full / 2
    assert pragma(store, "freelist_count") <= vacuum.SPARE_PAGES
    assert 1 < steps < 10, "a little at a time"
    run(store.close())


def test_a_file_of_before_is_converted_once_and_never_under_a_leader(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/fairlead.db"
    store = Store.open(url)
    run(store.acquire_lease("test", 1e9))
    fill(Opened(store), 100)
    run(store.release_lease())
    run(store.close())
    import sqlite3

    with sqlite3.connect(tmp_path / "fairlead.db") as raw:
        raw.execute("PRAGMA journal_mode=DELETE")
        raw.execute("PRAGMA auto_vacuum=NONE")
        raw.execute("VACUUM")
    raw.close()
    leader = Store.open(url)  # converts it
    assert pragma(leader, "auto_vacuum") == 2
    assert run(leader.read(lambda conn: conn.execute(select(func.count()).select_from(schema.events)).scalar())) == 100
    run(leader.close())
    with sqlite3.connect(tmp_path / "fairlead.db") as raw:
        raw.execute("PRAGMA auto_vacuum=NONE")
        raw.execute("VACUUM")
        raw.execute("UPDATE leadership SET holder = 'other', expires_s = 1e12")
    raw.close()
    follower = Store.open(url)
    assert pragma(follower, "auto_vacuum") == 0
    assert run(follower.write(vacuum.free_pages, unfenced=True)) == 0
    run(follower.close())


def test_a_store_of_before_has_all_sums_after_its_migration(empty_url: str, clock: Clock) -> None:
    engines = connect(empty_url)
    columns = "job, tenant, submitted_by, generation, node, device_type, devices, speed, from_s, to_s, cpu_s"
    line = f"INSERT INTO usage ({columns}) VALUES ('j', 'vision', 'tok', 1, 'n', 'cpu', 2, 1, {NOW - 900}, {NOW}, 60)"
    hour = f"INSERT INTO usage_hours VALUES ({int(NOW // HOUR)}, 'j', 'n', 'cpu', 'vision', 'tok', 1800, 60)"
    with engines.writer.begin() as conn:
        migrate.upgrade(conn, None, "0009")
        conn.execute(schema.tenants.insert(), tenant_row())
        old = a_job("old", id="j", phase=JobPhase.SUCCEEDED, submitted_s=NOW - 1000.0, started_s=NOW - 900.0)
        then = Table("jobs", MetaData(), autoload_with=conn)  # with the columns that it had
        values = {name: value for name, value in rows.row_of(replace(old, finished_s=NOW)).items() if name in then.c}
        conn.execute(then.insert(), {**values, "losses": 0})
        conn.exec_driver_sql("INSERT INTO submissions (job, tenant, request_digest, spec, labels) "
                             "VALUES ('j', 'vision', 'd', '{\"code\": \"sha256:a\"}', '{}')")  # fmt: skip
        for statement in (line, hour):
            conn.exec_driver_sql(statement)
    engines.dispose()
    store = Store.open(empty_url, clock=clock)
    run(store.acquire_lease("test", 1e9))
    db = Opened(store)
    (fine,) = db.read(usage_spans.totals_by_node, NOW - DAY, NOW)
    assert (fine.device_s, fine.cpu_s, fine.from_s, fine.to_s) == pytest.approx((1800.0, 60.0, NOW - 900.0, NOW))
    assert [line.device_s for line in db.read(usage_spans.totals_by_tenant, NOW - 30 * DAY, NOW)] == [1800.0]
    assert db.read(job_counts.counts_by_tenant) == {"vision": {"succeeded": 1}}
    assert db.read(retained_outputs.list_unmeasured, 10) == ["j"]
    assert db.read(lambda conn: conn.execute(select(schema.submissions.c.code)).scalar()) == "sha256:a"
    assert db.read(usage_spans.demand_periods, NOW - 30 * DAY, NOW)
    with pytest.raises(DBAPIError, match="append-only"):
        db.sql("DELETE FROM usage")
    run(store.close())
