"""Accounts: usage broken down from the ledger, and the audit log with its filters."""

from __future__ import annotations

from dataclasses import replace
from secrets import token_hex
from typing import Any

import pytest
from sqlalchemy import Connection

from fairlead.control.records import Role, Token, Usage
from fairlead.control.service.core import AuditThrottle
from fairlead.control.service.tenants import DAY_S, MAX_NEW_TOKENS, MAX_TOKENS, require_token_room
from fairlead.control.store import audit, ledger, ledger_sums, tokens
from fairlead.control.store.audit import AuditFilter
from fairlead.control.store.usage_breakdown import BreakdownLine, break_down, token_labels
from fairlead.errors import Refused

from . import made
from .stores import Opened, a_job, submit

HOUR_S = 3600.0


def a_line(job: str, from_s: float, to_s: float, node: str = "n1", tenant: str = "vision", user: str = "ann") -> Usage:
    return Usage(job, tenant, user, 1, node, "cpu", 2, 1.0, from_s, to_s, cpu_s=to_s - from_s)


def lines(
    db: Opened, by: list[str], since_s: float = 0.0, until_s: float = 1e9, tenant: str | None = None
) -> list[BreakdownLine]:
    return db.read(break_down, by, since_s, until_s, tenant)[0]


def test_lines_are_cut_at_full_hours_and_lose_nothing(db: Opened) -> None:
    db.write(ledger.append, [a_line("j", 3000.0, 3 * HOUR_S + 1)])
    written = db.read(ledger.lines_between, 0.0, 1e9)
    assert [(line.from_s, line.to_s) for line in written] == [
        (3000.0, HOUR_S), (HOUR_S, 2 * HOUR_S), (2 * HOUR_S, 3 * HOUR_S), (3 * HOUR_S, 3 * HOUR_S + 1),
    ]  # fmt: skip
    assert sum(line.cpu_s for line in written) == pytest.approx(3 * HOUR_S + 1 - 3000)
    assert db.read(ledger.totals, 0, 1e9) == pytest.approx({"vision": 2 * (3 * HOUR_S + 1 - 3000)})


@pytest.mark.parametrize("since_s", [0.0, 1234.5, HOUR_S, 90_000.0, 100_000.25, 172_800.0])
@pytest.mark.parametrize("until_s", [1300.0, 2 * HOUR_S, 86_400.0, 100_001.0, 172_801.5, 200_000.0, 1e9])
def test_sums_say_what_the_lines_say(db: Opened, since_s: float, until_s: float) -> None:
    moments = [100.0 + 7919.0 * place for place in range(26)]
    written = [a_line("j", begin, begin + 7000.0) for begin in moments]
    written += [a_line("k", begin + 3, begin + 5000.0, tenant="text") for begin in moments]
    db.write(ledger.append, written)
    expected: dict[str, float] = {}
    for line in written:
        within = max(0.0, min(line.to_s, until_s) - max(line.from_s, since_s))
        expected[line.tenant] = expected.get(line.tenant, 0.0) + line.devices * within
    expected = {tenant: amount for tenant, amount in expected.items() if amount}
    assert db.read(ledger.totals, since_s, until_s) == pytest.approx(expected)
    found = {line.keys[0]: line.device_s for line in lines(db, ["tenant"], since_s, until_s)}
    assert found == pytest.approx(expected)


def test_usage_can_be_broken_down_by_everything(db: Opened) -> None:
    for name, tenant, labels in (("a", "vision", {"team": "x", "run": "1"}), ("b", "vision", {"run": "1", "team": "x"}),
                                 ("c", "text", {"team": "y"}), ("d", "text", {})):  # fmt: skip
        submit(db, a_job(name, tenant, id=name), **labels)
    db.write(ledger.append, [
        a_line("a", 0, 100), a_line("a", 0, 50, node="n2"), a_line("b", 0, 10, user="bob"),
        a_line("c", 0, 1000, tenant="text"), a_line("d", 0, 1, tenant="text"), a_line("gone", 0, 2, tenant="text"),
    ])  # fmt: skip
    assert lines(db, ["tenant"]) == [BreakdownLine(("text",), 2006, 1003, 3), BreakdownLine(("vision",), 320, 160, 2)]
    assert lines(db, ["user"], tenant="vision") == [
        BreakdownLine(("ann",), 300, 150, 1),
        BreakdownLine(("bob",), 20, 10, 1),
    ]
    assert lines(db, ["job"], tenant="vision") == [BreakdownLine(("a",), 300, 150, 1), BreakdownLine(("b",), 20, 10, 1)]
    assert lines(db, ["node"], tenant="vision") == [
        BreakdownLine(("n1",), 220, 110, 2),
        BreakdownLine(("n2",), 100, 50, 1),
    ]
    assert lines(db, ["device"]) == [BreakdownLine(("cpu",), 2326, 1163, 5)]
    # Labels in another order are the same; a job without any, or of which only the ledger knows, counts under none.
    by_label = lines(db, ["label"])
    assert by_label == [
        BreakdownLine(("team=y",), 2000, 1000, 1),
        BreakdownLine(("run=1,team=x",), 320, 160, 2),
        BreakdownLine(("",), 6, 3, 2),
    ]
    assert lines(db, ["label:team"]) == [
        BreakdownLine(("y",), 2000, 1000, 1),
        BreakdownLine(("x",), 320, 160, 2),
        BreakdownLine(("",), 6, 3, 2),
    ]
    assert lines(db, ["label:nobody's"]) == [BreakdownLine(("",), 2326, 1163, 5)]
    assert lines(db, ["tenant", "node"])[-1] == BreakdownLine(("vision", "n2"), 100, 50, 1)


def test_the_total_counts_a_job_once_wherever_it_ran(db: Opened) -> None:
    db.write(ledger.append, [a_line("a", 0, 100), a_line("a", 0, 50, node="n2")])
    found, whole = db.read(break_down, ["node"], 0.0, 1e9)
    assert [line.jobs for line in found] == [1, 1]
    assert whole == BreakdownLine((), 300, 150, 1)


def test_an_empty_ledger_has_no_lines(db: Opened) -> None:
    assert db.read(break_down, ["tenant"], 0.0, 1e9) == ([], BreakdownLine((), 0, 0, 0))


def test_what_is_undone_is_not_in_the_sums(db: Opened) -> None:
    def fails(conn: object) -> None:
        ledger.append(conn, [a_line("j", 0, 100)])  # type: ignore[arg-type]
        raise LookupError

    with pytest.raises(LookupError):
        db.write(fails)
    assert db.read(ledger.totals, 0, 1e9) == {}
    assert db.read(break_down, ["job"], 0.0, 1e9)[0] == []


def test_a_piece_of_a_line_that_has_no_length_is_the_line() -> None:
    line = a_line("j", HOUR_S, HOUR_S)
    assert list(ledger_sums.split_at_hours(line)) == [line]


def test_a_tenant_learns_the_labels_of_its_own_tokens_only(db: Opened) -> None:
    for id, tenant, role in (("ann", "vision", Role.MEMBER), ("root", None, Role.ADMIN)):
        db.write(tokens.insert, Token(id, tenant, role, f"for {id}", "digest", 1.0))
    assert db.read(token_labels, {"ann", "root"}, None) == {"ann": "for ann", "root": "for root"}
    assert db.read(token_labels, {"ann", "root"}, "vision") == {"ann": "for ann"}


def test_when_a_token_was_used_only_moves_on(db: Opened) -> None:
    db.write(tokens.insert, Token("ann", "vision", Role.MEMBER, "", "digest", 1.0))
    for moment, known in ((5.0, 5.0), (4.0, 5.0), (6.0, 6.0)):
        db.write(tokens.record_use, "ann", moment)
        found = db.read(tokens.get, "ann")
        assert found is not None and found.used_s == known


def test_the_audit_log_can_be_asked_for_a_part_of_it(db: Opened) -> None:
    entries = [
        ("ann", "token.create", "vision"), ("ann", "job.cancel", "vision"), ("bob", "token.revoke", "text"),
        ("bob", "node.drain", None), ("bob", "token_create", "text"),
    ]  # fmt: skip
    for moment, (actor, action, tenant) in enumerate(entries):
        db.write(audit.append, time_s=float(moment), actor=actor, action=action, target="x", tenant=tenant)

    def ids(wanted: AuditFilter, after: int = 0) -> list[int]:
        return [entry.id for entry in db.read(audit.after, after, 10, wanted)]

    assert ids(AuditFilter()) == [1, 2, 3, 4, 5]
    assert ids(AuditFilter(actor="ann")) == [1, 2]
    assert ids(AuditFilter(action="token.")) == [1, 3]
    assert ids(AuditFilter(action="token_")) == [5]
    assert ids(AuditFilter(tenant="text")) == [3, 5]
    assert ids(AuditFilter(since_s=1.0, until_s=3.0)) == [2, 3]
    assert ids(AuditFilter(actor="bob"), db.read(audit.before_newest, 2, AuditFilter(actor="bob"))) == [4, 5]
    assert db.read(audit.before_newest, 2, AuditFilter(actor="nobody")) == 0


def _tokens(db: Opened, count: int, **fields: Any) -> None:
    def work(conn: Connection) -> None:
        for _ in range(count):
            tokens.insert(conn, replace(made.token(Role.VIEWER), id=token_hex(5), **fields))

    db.write(work)


def test_a_tenant_has_no_more_good_tokens_than_it_may(db: Opened) -> None:
    _tokens(db, MAX_TOKENS - 1, created_s=0.0)
    _tokens(db, 3, created_s=0.0, revoked_s=1.0)
    _tokens(db, 3, created_s=0.0, expires_s=10.0)
    db.read(require_token_room, "vision", 20.0)
    with pytest.raises(Refused, match="has 502 valid tokens"):
        db.read(require_token_room, "vision", 5.0)  # when three of them had not expired
    _tokens(db, 1, created_s=2.0)
    with pytest.raises(Refused, match="has 500 valid tokens") as caught:
        db.read(require_token_room, "vision", 20.0)
    assert "fairlead token revoke" in str(caught.value.fix)
    db.read(require_token_room, "nlp", 20.0)


def test_revoked_tokens_do_not_pile_up_either(db: Opened) -> None:
    now_s = 10 * DAY_S
    _tokens(db, MAX_NEW_TOKENS, created_s=now_s - 60, revoked_s=now_s - 30)
    with pytest.raises(Refused, match="tokens within a day"):
        db.read(require_token_room, "vision", now_s)
    db.read(require_token_room, "vision", now_s + DAY_S)


def test_what_a_token_does_again_and_again_is_noted_once_a_minute() -> None:
    noted = AuditThrottle(60.0)
    assert [noted.due("a", "session.open", now_s) for now_s in (0.0, 1.0, 59.0, 60.0, 61.0)] == [
        True, False, False, True, False,
    ]  # fmt: skip
    assert noted.due("b", "session.open", 61.0) and noted.due("a", "session.close", 61.0)
    assert noted.due("a", "session.open", 200.0) and len(noted._noted_s) == 1, "what is old is forgotten"


def test_what_is_repeated_is_audited_again_at_once_when_the_clock_was_set_back() -> None:
    throttle = AuditThrottle(60.0)
    assert throttle.due("ann", "refused", 10_000.0) and not throttle.due("ann", "refused", 10_059.9)
    assert throttle.due("ann", "refused", 5_000.0) and not throttle.due("ann", "refused", 5_000.0)
    assert throttle.due("ann", "refused", 5_060.0), "just as long after the last entry"
