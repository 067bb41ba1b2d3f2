"""Tenants, tokens, events, metrics, nodes, audit, memory and bundles: what is put in comes out."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from sqlalchemy import Text, cast, func, select

from fairlead.cluster import NodeState
from fairlead.control.identity import tokens as identity
from fairlead.control.records import Role
from fairlead.control.store import audit, bundles, events, metrics, nodes, policy_memory, tenants, tokens
from fairlead.control.store.schema import metrics as rows
from fairlead.errors import Conflict, NotFound, Unauthenticated
from fairlead.specs import Sla, parse_tenant

from .stores import Opened, a_job, submit


def test_tenants_are_numbered_and_unique(db: Opened) -> None:
    spec = parse_tenant({"name": "speech", "weight": 2, "quota": 4, "sla": {"deadline": "2h"}})
    made = db.write(tenants.insert, spec)
    assert (made.number, made.weight, made.quota) == (2, 2.0, 4)
    assert db.read(tenants.get, "speech") == made
    assert Sla.model_validate(made.sla) == spec.sla
    with pytest.raises(Conflict, match="speech"):
        db.write(tenants.insert, spec)
    assert [tenant.name for tenant in db.read(tenants.all_tenants)] == ["vision", "text", "speech"]
    assert db.read(tenants.get, "nobody") is None


def test_a_tenant_can_be_changed(db: Opened) -> None:
    changed = db.write(tenants.update, "vision", weight=3.5, quota=None, sla={"class": "gold"})
    assert changed == db.read(tenants.get, "vision")
    assert (changed.weight, changed.sla) == (3.5, {"class": "gold"})
    with pytest.raises(NotFound):
        db.write(tenants.update, "nobody", weight=1.0)


def test_a_token_is_checked_as_it_was_minted(db: Opened) -> None:
    token, shown = identity.mint("vision", Role.MEMBER, "laptop", 200.0, 100.0)
    db.write(tokens.insert, token)
    token_id, secret = identity.parse(f"Bearer {shown}")
    stored = db.read(tokens.get, token_id)
    assert stored == token
    assert identity.verify(stored, secret, 150.0) == token
    assert secret not in repr(stored)
    assert identity.parse(shown) == (token_id, secret)


def test_a_token_that_is_wrong_expired_revoked_or_unknown_opens_nothing(db: Opened) -> None:
    token, shown = identity.mint("vision", Role.MEMBER, "laptop", 200.0, 100.0)
    db.write(tokens.insert, token)
    _, secret = identity.parse(shown)
    with pytest.raises(Unauthenticated, match="unknown"):
        identity.verify(token, "0" * len(secret), 150.0)
    with pytest.raises(Unauthenticated, match="unknown"):
        identity.verify(None, secret, 150.0)
    with pytest.raises(Unauthenticated, match="expired"):
        identity.verify(token, secret, 200.0)
    revoked = db.write(tokens.revoke, token.id, 120.0)
    assert db.write(tokens.revoke, token.id, 130.0) == revoked
    with pytest.raises(Unauthenticated, match="revoked"):
        identity.verify(db.read(tokens.get, token.id), secret, 150.0)


@pytest.mark.parametrize(
    "bearer", ["", "Bearer", "Bearer x", "fl_", "fl_a_", "fl__b", "fl_a_b", "Basic fl_a_" + "b" * 40]
)
def test_what_is_no_token_is_refused(bearer: str) -> None:
    with pytest.raises(Unauthenticated) as refused:
        identity.parse(bearer)
    assert refused.value.fix


def test_tokens_are_listed_per_tenant(db: Opened) -> None:
    admin = identity.mint(None, Role.ADMIN, "root", None, 1.0)[0]
    member = identity.mint("vision", Role.MEMBER, "m", None, 2.0)[0]
    other = identity.mint("text", Role.VIEWER, "o", None, 3.0)[0]
    for token in (admin, member, other):
        db.write(tokens.insert, token)
    assert db.read(tokens.list_tokens) == [admin, member, other]
    assert db.read(tokens.list_tokens, "vision") == [member]
    with pytest.raises(NotFound):
        db.write(tokens.revoke, "nobody", 1.0)


def test_events_are_followed_by_id_tenant_and_job(db: Opened) -> None:
    assert db.read(events.newest_id) == 0
    first = db.write(events.append, time_s=1.0, kind="node-lost", text="n1 is gone", node="n1")
    mine = db.write(events.append, time_s=2.0, kind="job-submitted", text="t", tenant="vision", job="j", facts={"a": 1})
    theirs = db.write(events.append, time_s=3.0, kind="job-submitted", text="t", tenant="text", job="k")
    assert first < mine < theirs == db.read(events.newest_id)
    assert [event.id for event in db.read(events.after, 0, 10)] == [first, mine, theirs]
    assert [event.id for event in db.read(events.after, first, 1)] == [mine]
    assert [event.id for event in db.read(events.after, 0, 10, tenant="vision")] == [mine]
    assert db.read(events.before_newest, 2) == mine - 1
    assert db.read(events.before_newest, 9) == first - 1
    assert db.read(events.before_newest, 1, tenant="vision") == mine - 1
    assert db.read(events.before_newest, 5, tenant="nobody") == theirs
    (found,) = db.read(events.after, 0, 10, job="j")
    assert (found.kind, found.facts, found.node) == ("job-submitted", {"a": 1}, None)


def test_a_step_done_again_counts_as_it_was_done_last(db: Opened) -> None:
    job = submit(db, a_job())
    db.write(metrics.append, job.id, 1, [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}])
    db.write(metrics.append, job.id, 2, [{"step": 2, "loss": 1.9}, {"step": 3, "loss": math.nan}])
    db.write(metrics.append, job.id, 2, [])
    assert db.read(metrics.history, job.id) == [
        {"step": 1, "loss": 3.0}, {"step": 2, "loss": 1.9}, {"step": 3, "loss": None},
    ]  # fmt: skip
    assert db.read(metrics.history, "nobody") == []


def told(first: int, last: int, **more: float) -> list[dict[str, float]]:
    return [{"step": float(step), "time_s": 1.8e9 + step, "loss": 1.0 / step} | more for step in range(first, last + 1)]


def stored_bytes(db: Opened, job: str) -> int:
    query = select(func.coalesce(func.sum(func.length(cast(rows.c.points, Text))), 0)).where(rows.c.job == job)
    return db.read(lambda conn: int(conn.execute(query).scalar_one()))


def test_a_history_that_goes_on_for_ever_keeps_its_shape_within_a_budget(
    db: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_ROWS", 32)
    job, other = submit(db, a_job()), submit(db, a_job())
    db.write(metrics.append, other.id, 1, told(1, 3))
    for message in range(120):
        begin = message * 200
        points = told(begin + 1, begin + 200)
        points[-1]["accuracy"] = message / 100
        db.write(metrics.append, job.id, 1, points)
        assert stored_bytes(db, job.id) < metrics.MAX_ROWS * metrics.ROW_BYTES
    found = db.read(metrics.history, job.id)
    steps = [point["step"] for point in found]
    assert steps == sorted(set(steps)) and steps[-1] == 24_000
    assert [point["accuracy"] for point in found if "accuracy" in point] == pytest.approx([n / 100 for n in range(120)])
    assert all(point["loss"] == pytest.approx(1.0 / point["step"], rel=0.1) for point in found[50:])
    assert steps[-500:] == list(range(23_501, 24_001)) and max(b - a for a, b in pairwise(steps)) < 200
    assert db.read(metrics.history, other.id) == told(1, 3)


def test_wide_points_count_by_their_bytes(db: Opened) -> None:
    job = submit(db, a_job())
    for message in range(40):
        wide = {f"{message}-{n:03d}{'x' * 20}": 0.123 for n in range(600)}
        db.write(metrics.append, job.id, 1, told(10 * message + 1, 10 * message + 10, **wide))
    assert stored_bytes(db, job.id) < 13_000_000
    found = db.read(metrics.history, job.id, 50)
    assert len(found) <= 50 and all(len(point) <= metrics.MAX_NAMES + 600 for point in found)


def test_small_reports_are_packed_and_none_is_lost(db: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_ROWS", 16)
    job = submit(db, a_job())
    for step in range(1, 101):
        db.write(metrics.append, job.id, 1 + step // 40, told(step, step))
    assert db.read(metrics.history, job.id) == told(1, 100)
    count = select(func.count()).where(rows.c.job == job.id)
    assert db.read(lambda conn: int(conn.execute(count).scalar_one())) <= metrics.MAX_ROWS


def test_what_a_former_generation_said_too_late_changes_nothing(db: Opened) -> None:
    job = submit(db, a_job())
    db.write(metrics.append, job.id, 1, told(1, 9))
    db.write(metrics.append, job.id, 2, told(5, 12))
    db.write(metrics.append, job.id, 1, told(8, 10, late=1.0))
    db.write(metrics.append, job.id, 2, told(13, 14))
    assert db.read(metrics.history, job.id) == told(1, 14)


def test_the_last_state_of_a_node_counts(db: Opened) -> None:
    for state in (NodeState.CORDONED, NodeState.DRAINING):
        db.write(nodes.set_state, "n1", state)
    db.write(nodes.set_state, "n2", NodeState.LOST)
    assert db.read(nodes.states) == {"n1": NodeState.DRAINING, "n2": NodeState.LOST}


def test_a_cursor_never_goes_back(db: Opened) -> None:
    for sequence in (3, 7, 5):
        db.write(nodes.advance_cursor, "n1", "first", sequence)
    db.write(nodes.advance_cursor, "n1", "second", 1)
    assert db.read(nodes.cursors) == {("n1", "first"): 7, ("n1", "second"): 1}


def test_the_audit_log_is_read_in_order(db: Opened) -> None:
    for action in ("submit", "cancel"):
        db.write(audit.append, time_s=1.0, actor="tok", action=action, target="j", detail={"n": 1})
    first, second = db.read(audit.after, 0, 10)
    assert (first.action, second.action, first.detail) == ("submit", "cancel", {"n": 1})
    assert db.read(audit.after, first.id, 10) == [second]


def test_the_memory_of_the_scheduler_is_the_last_one_saved(db: Opened) -> None:
    assert db.read(policy_memory.load) == {}
    for body in ({"a": 1}, {"b": [1, {"c": None}]}):
        db.write(policy_memory.save, body)
    assert db.read(policy_memory.load) == {"b": [1, {"c": None}]}


def test_a_bundle_is_known_only_to_its_tenant(db: Opened) -> None:
    for _ in range(2):
        db.write(bundles.add, "vision", "sha256:x", 10, 1.0)
    assert db.read(bundles.exists_for, "vision", "sha256:x")
    assert not db.read(bundles.exists_for, "text", "sha256:x")
