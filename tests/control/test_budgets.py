"""Budgets: counted from the ledger and from what runs now, per day, week or month of UTC, and said once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from fairlead.cluster import Member
from fairlead.control.accounting.budgets import (
    BudgetStop,
    Spending,
    budget_period,
    budget_stops,
    record_budget_events,
    require_budget,
    spendings,
    spent_budgets,
)
from fairlead.control.records import Generation, GenerationPhase, Tenant, Usage
from fairlead.control.store import Store, events, generations, ledger, migrate, tenants
from fairlead.control.tenant_tree import tenant_shares
from fairlead.errors import FairleadError, OverBudget

from .stores import Opened, a_job, run, submit

NOW_S = datetime(2026, 11, 18, 15, 30, tzinfo=UTC).timestamp()  # a Wednesday
MONTH_S = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
HOUR_S = 3600.0


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("per", "now", "since", "until"),
    [
        ("day", "2026-11-18T15:30", "2026-11-18", "2026-11-19"), ("day", "2026-12-31", "2026-12-31", "2027-01-01"),
        ("week", "2026-11-18T15:30", "2026-11-16", "2026-11-23"), ("week", "2026-11-16", "2026-11-16", "2026-11-23"),
        ("week", "2026-11-22T23:59", "2026-11-16", "2026-11-23"), ("month", "2026-11-18", "2026-11-01", "2026-12-01"),
        ("month", "2026-12-31T23:59", "2026-12-01", "2027-01-01"), ("month", "2028-02-29", "2028-02-01", "2028-03-01"),
    ],
)  # fmt: skip
def test_a_period_begins_at_midnight_utc(per: str, now: str, since: str, until: str) -> None:
    assert budget_period(per, at(now)) == (at(since), at(until))


def limit(db: Opened, hours: float, per: str = "month", **more: float) -> Tenant:
    return db.write(tenants.update, "vision", budget={"device_hours": hours, "per": per, **more})


def used(db: Opened, from_s: float, to_s: float, tenant: str = "vision", devices: int = 1) -> None:
    db.write(ledger.append, [Usage("j", tenant, "tok", 1, "n1", "cpu", devices, 1.0, from_s, to_s)])


def spending(db: Opened, now_s: float = NOW_S) -> Spending:
    return db.read(lambda conn: spendings(conn, tenants.all_tenants(conn), now_s))["vision"]


def test_only_the_present_period_and_the_own_use_count(db: Opened) -> None:
    limit(db, 10.0)
    used(db, MONTH_S - HOUR_S, MONTH_S + HOUR_S)  # half of it was last month
    used(db, NOW_S - HOUR_S, NOW_S, devices=2)
    used(db, NOW_S - HOUR_S, NOW_S, tenant="text", devices=64)
    assert spending(db).used_hours == pytest.approx(3.0)
    limit(db, 10.0, "day")
    assert spending(db).used_hours == pytest.approx(2.0)
    assert spending(db, NOW_S + 86400).used_hours == 0.0


def test_without_a_budget_nothing_is_counted(db: Opened) -> None:
    assert db.read(lambda conn: spendings(conn, tenants.all_tenants(conn), NOW_S)) == {}


def test_what_runs_now_counts_before_it_is_metered_and_after_a_restart(
    db: Opened, unopened: Callable[[], Store]
) -> None:
    limit(db, 3.0)
    submit(db, a_job(id="j", generation=1))
    members = (Member("w0", 0, "n1", 0), Member("w1", 1, "n2", 0))
    db.write(generations.insert, Generation("j", 1, GenerationPhase.RUNNING, members, "x", "x", NOW_S - 2 * HOUR_S,
                                            running_s=NOW_S - 2 * HOUR_S, metered_s=NOW_S - 2 * HOUR_S))  # fmt: skip
    used(db, NOW_S - 3 * HOUR_S, NOW_S - 2 * HOUR_S - 1800)
    assert spending(db).used_hours == pytest.approx(4.5) and spending(db).spent is not None
    assert spending(db, NOW_S - HOUR_S).spent is None
    again = Opened(unopened())  # another control plane that opens the same store
    assert spending(again).used_hours == pytest.approx(4.5)
    db.write(generations.update, "j", 1, phase=GenerationPhase.ENDED, ended_s=NOW_S)
    assert spending(db).used_hours == pytest.approx(0.5)


def test_a_used_up_budget_is_refused_with_field_value_and_date(db: Opened) -> None:
    tenant = limit(db, 2.0)
    used(db, NOW_S - 2 * HOUR_S, NOW_S)
    with pytest.raises(OverBudget) as refused:
        db.read(require_budget, tenant, NOW_S)
    error = refused.value
    assert (error.status, error.exit_code, error.field, error.value) == (409, 4, "budget", "2h/month")
    assert "2026-12-01 00:00 UTC" in str(error.fix)
    assert isinstance(FairleadError.from_problem(error.problem()), OverBudget)
    db.read(require_budget, tenant, at("2026-12-01"))  # the next month is another one
    db.read(require_budget, limit(db, 2.1), NOW_S)


def told(db: Opened) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in db.read(events.after, 0, 100)]


def test_a_warning_and_the_end_are_each_told_once_in_a_period(db: Opened) -> None:
    limit(db, 10.0, warn_at=0.5)

    def look(now_s: float = NOW_S) -> None:
        db.write(
            lambda conn: record_budget_events(conn, spendings(conn, tenants.all_tenants(conn), now_s).values(), now_s)
        )

    used(db, NOW_S - 4 * HOUR_S, NOW_S)
    look()
    assert told(db) == []
    used(db, NOW_S - 2 * HOUR_S, NOW_S)
    for _ in range(3):
        look()
    [(kind, text)] = told(db)
    assert kind == "budget-warning"
    assert text == ("tenant vision has used 60% of its budget of 10 device hours a month; "
                    "the next begins 2026-12-01 00:00 UTC")  # fmt: skip
    used(db, NOW_S - 4 * HOUR_S, NOW_S)
    for _ in range(3):
        look()
    assert [kind for kind, _ in told(db)] == ["budget-warning", "budget-used-up"]
    look(at("2026-12-15"))
    assert len(told(db)) == 2
    used(db, at("2026-12-15") - 9 * HOUR_S, at("2026-12-15"))
    look(at("2026-12-15"))
    assert [kind for kind, _ in told(db)][2:] == ["budget-warning"]


def test_from_when_to_when_nothing_was_left_is_known_afterwards(db: Opened) -> None:
    limit(db, 2.0, "day")
    used(db, NOW_S - HOUR_S, NOW_S, devices=3)
    db.write(lambda conn: record_budget_events(conn, spendings(conn, tenants.all_tenants(conn), NOW_S).values(), NOW_S))
    midnight_s = budget_period("day", NOW_S)[1]

    def spans(now_s: float, since_s: float = NOW_S - HOUR_S) -> list[BudgetStop]:
        return db.read(lambda conn: budget_stops(conn, tenants.all_tenants(conn), since_s, now_s))

    assert spans(NOW_S + 60.0) == [BudgetStop("vision", NOW_S, midnight_s)]
    assert spans(midnight_s + 60.0) == [BudgetStop("vision", NOW_S, midnight_s)], "also when the next period has begun"
    assert spans(midnight_s + 60.0, midnight_s) == []
    limit(db, 20.0, "day")
    assert spans(NOW_S + 60.0) == [], "a budget that was raised is not held against its tenant"
    db.write(tenants.update, "vision", budget=None)
    assert spans(midnight_s + 60.0) == []


def test_a_tenant_without_jobs_is_shown_what_it_could_claim(db: Opened) -> None:
    everyone = db.read(tenants.all_tenants)

    def entitled(*args: Any, **more: Any) -> dict[str, float]:
        return {name: found.entitlement for name, found in tenant_shares(*args, **more).items()}

    assert entitled(everyone, {}, {}, 8) == {"vision": 4.0, "text": 4.0}
    assert entitled(everyone, {"vision": 7.0, "text": 0.0}, {}, 8) == {"vision": 7.0, "text": 4.0}
    assert entitled(everyone, {}, {}, 8, barred={"vision"}) == {"vision": 0.0, "text": 4.0}


def test_the_ledger_of_an_older_fairlead_is_added_up_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    url = f"sqlite:///{path}"
    engine = create_engine(url)
    with engine.begin() as old:
        migrate.upgrade(old, None, "0002")
    engine.dispose()
    with sqlite3.connect(path) as connection:
        columns = "job, tenant, submitted_by, generation, node, device_type, devices, speed, from_s, to_s, cpu_s"
        rows = [("j", "vision", "tok", 1, "n1", "cpu", 2, 1.0, 3000.0, 100_000.0, 97.0)]
        connection.executemany(f"INSERT INTO usage ({columns}) VALUES (?,?,?,?,?,?,?,?,?,?,?)", rows)
    store = Store.open(url)
    assert run(store.read(lambda conn: ledger.totals(conn, 0.0, 1e9))) == {"vision": 2 * 97_000.0}
    assert run(store.read(lambda conn: ledger.totals(conn, 0.0, 86_400.0))) == pytest.approx({"vision": 2 * 83_400.0})
    run(store.close())


def below(db: Opened, name: str) -> None:
    db.write(tenants.update, name, parent="vision")


def test_a_budget_counts_what_all_below_it_use(db: Opened) -> None:
    limit(db, 10.0)
    below(db, "text")
    used(db, NOW_S - HOUR_S, NOW_S)
    used(db, NOW_S - HOUR_S, NOW_S, tenant="text", devices=4)
    assert spending(db).used_hours == pytest.approx(5.0)


def test_who_stands_below_a_used_up_budget_is_refused_and_barred(db: Opened) -> None:
    limit(db, 2.0)
    below(db, "text")
    used(db, NOW_S - HOUR_S, NOW_S, tenant="text", devices=4)
    known = db.read(tenants.all_tenants)
    spent = spent_budgets(known, db.read(lambda conn: spendings(conn, known, NOW_S)))
    assert {name: one.of for name, one in spent.items()} == {"vision": "", "text": "vision"}
    text = next(tenant for tenant in known if tenant.name == "text")
    with pytest.raises(OverBudget, match="tenant vision, above text, has used up its budget of 2 device hours a month"):
        db.read(require_budget, text, NOW_S)
    db.write(lambda conn: record_budget_events(conn, spendings(conn, known, NOW_S).values(), NOW_S))
    assert {one.tenant for one in db.read(budget_stops, known, NOW_S - HOUR_S, NOW_S + 1)} == {"vision", "text"}


def test_of_several_budgets_the_one_that_lasts_longest_is_named(db: Opened) -> None:
    limit(db, 2.0)
    db.write(tenants.update, "text", parent="vision", budget={"device_hours": 1.0, "per": "day"})
    used(db, NOW_S - HOUR_S, NOW_S, tenant="text", devices=4)
    text = next(tenant for tenant in db.read(tenants.all_tenants) if tenant.name == "text")
    with pytest.raises(OverBudget) as refused:
        db.read(require_budget, text, NOW_S)
    assert refused.value.value == "2h/month"
