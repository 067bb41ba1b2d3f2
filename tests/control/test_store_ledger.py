"""The usage ledger: only ever added to, decayed exactly, fast when long."""

from __future__ import annotations

from itertools import pairwise

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from fairlead.control.records import Usage
from fairlead.control.store import audit, ledger

from .stores import Opened


def a_line(from_s: float, to_s: float, tenant: str = "vision", job: str = "j", devices: int = 1) -> Usage:
    return Usage(job, tenant, "tok", 1, "n1", "cpu", devices, 1.0, from_s, to_s, 0.5)


def test_lines_come_back_as_they_were_written(db: Opened) -> None:
    written = [a_line(0, 10), a_line(10, 20, job="k"), a_line(20, 30, tenant="text")]
    db.write(ledger.append, written)
    db.write(ledger.append, [])
    assert db.read(ledger.lines_between, 0, 100) == written
    assert db.read(ledger.lines_between, 5, 15) == written[:2]
    assert db.read(ledger.lines_between, 10, 20) == [written[1]]
    assert [(sums.device_s, sums.cpu_s) for sums in db.read(ledger.hours_of_job, "k")] == [(10.0, 0.5)]


def test_nothing_written_can_be_changed_or_removed(db: Opened) -> None:
    db.write(ledger.append, [a_line(0, 10)])
    db.write(audit.append, time_s=1.0, actor="tok", action="cancel", target="j", detail={"why": "x"})
    changes = ["UPDATE {} SET id = id + 1", "DELETE FROM {}"]
    if db.read(lambda conn: conn.dialect.name) == "postgresql":
        changes.append("TRUNCATE {}")
    for change in (change.format(table) for change in changes for table in ("usage", "audit")):
        with pytest.raises(DBAPIError, match="append-only"):
            db.sql(change)
    assert len(db.read(ledger.lines_between, 0, 100)) == len(db.read(audit.after, 0, 10)) == 1


def test_totals_count_only_what_lies_within(db: Opened) -> None:
    db.write(ledger.append, [a_line(0, 10, devices=2), a_line(10, 20), a_line(0, 100, tenant="text")])
    assert db.read(ledger.totals, 0, 100) == {"vision": 30.0, "text": 100.0}
    assert db.read(ledger.totals, 5, 12) == {"vision": 12.0, "text": 7.0}
    assert db.read(ledger.totals, 200, 300) == {}


def test_service_counts_half_after_a_half_life(db: Opened) -> None:
    db.write(ledger.append, [a_line(0, 0.001, devices=1000), a_line(0, 0.001, tenant="text", devices=3000)])
    assert db.read(ledger.attained, 0.001, 100.0) == pytest.approx({"vision": 1.0, "text": 3.0}, rel=1e-3)
    assert db.read(ledger.attained, 100.0, 100.0) == pytest.approx({"vision": 0.5, "text": 1.5}, rel=1e-3)
    assert db.read(ledger.attained, 300.0, 100.0) == pytest.approx({"vision": 0.125, "text": 0.375}, rel=1e-3)


def test_cutting_a_line_in_two_changes_nothing(db: Opened) -> None:
    cuts = [0.0, 3.0, 50.0, 51.0, 200.0]
    db.write(ledger.append, [a_line(0, 200, tenant="text"), *(a_line(a, b) for a, b in pairwise(cuts))])
    attained = db.read(ledger.attained, 250.0, 60.0)
    assert attained["vision"] == pytest.approx(attained["text"])


def test_what_is_recollected_equals_what_is_reckoned_anew(db: Opened) -> None:
    for moment in range(1, 30):
        db.write(ledger.append, [a_line(moment * 10 - 15, moment * 10, devices=moment % 3 + 1)])
        recollected = db.read(ledger.attained, moment * 10.0, 40.0)
        assert recollected == pytest.approx(db.write(ledger.attained, moment * 10.0, 40.0))
    assert db.read(ledger.attained, 100.0, 40.0) == pytest.approx(db.write(ledger.attained, 100.0, 40.0))


def test_a_line_that_was_taken_back_is_not_recollected(db: Opened) -> None:
    def doomed(conn: object) -> None:
        ledger.append(conn, [a_line(0, 10)])  # type: ignore[arg-type]
        assert ledger.attained(conn, 10.0, 1e9)["vision"] == pytest.approx(10.0)  # type: ignore[arg-type]
        raise ValueError

    with pytest.raises(ValueError):
        db.write(doomed)
    assert db.read(ledger.attained, 10.0, 1e9) == {}
    db.write(ledger.append, [a_line(0, 5)])
    assert db.read(ledger.attained, 10.0, 1e9)["vision"] == pytest.approx(5.0)


def test_a_long_ledger_is_asked_anew_without_reading_it_all_again(db: Opened) -> None:
    # A line for each of 100,000 seconds, written by the database itself.
    counting = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) "
    names = "job, tenant, submitted_by, generation, node, device_type, devices, speed, from_s, to_s, cpu_s"
    values = "SELECT 'j', CASE i % 2 WHEN 0 THEN 'vision' ELSE 'text' END, 't', 1, 'n', 'cpu', 1, 1, i - 1, i, 0 FROM n"
    db.write(lambda conn: conn.execute(text(f"INSERT INTO usage ({names}) {counting} {values}")))
    first = db.read(ledger.attained, 100_000.0, 3600.0)
    for later in range(1, 10):
        again = db.read(ledger.attained, 100_000.0 + later, 3600.0)
        assert {tenant: again[tenant] < first[tenant] for tenant in first} == {"vision": True, "text": True}
