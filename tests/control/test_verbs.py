"""What may be asked of the platform: by whom, what is answered, and what is written down about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.records import ENDED, DataSet, GenerationPhase, JobPhase, Role, Usage
from fairlead.control.service import why as reasons
from fairlead.control.service.tenants import DAY_S, RECORD_USE_EVERY_S, TOKEN_CACHE_S
from fairlead.control.store import datasets, events, generations, jobs, ledger, lineage, metrics, sessions, tokens
from fairlead.control.store.audit import AuditFilter
from fairlead.errors import Conflict, Forbidden, InvalidSpec, NotFound, Refused, StillRunning, Unauthenticated
from fairlead.specs import SHORTEST_SECRET, TenantSpec

from . import made
from .stores import Opened, a_job, submit
from .verbs import Asked

HOUR_S = 3600.0


def ended(db: Opened, name: str, at_s: float = 1_000_100.0, **fields: Any) -> str:
    job = submit(db, a_job(name, id=name, **fields))
    db.write(jobs.update, job.id, phase=JobPhase.SUCCEEDED, finished_s=at_s, started_s=1_000_050.0)
    return job.id


# ---------------------------------------------------------------- tokens and sessions


def test_a_token_is_read_from_the_store_every_few_seconds_and_its_use_noted_every_minute(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    really = tokens.get
    monkeypatch.setattr(tokens, "get", lambda connection, id: (read.append(id), really(connection, id))[1])
    noted: list[float] = []
    monkeypatch.setattr(tokens, "record_use", lambda connection, id, now_s: noted.append(now_s))

    async def come(times: int = 1) -> None:
        for _ in range(times):
            assert await asked.platform.authenticate(asked.secrets[asked.ann.id]) == asked.ann
            for task in [*asked.platform._recording]:
                await task

    start_s = asked.clock()
    asked.ask(come(3))
    assert len(read) == 1 and noted == [start_s]
    asked.clock.advance(TOKEN_CACHE_S - 0.1)
    asked.ask(come())
    assert len(read) == 1
    asked.clock.advance(0.1)
    asked.ask(come(2))
    assert len(read) == 2 and len(noted) == 1
    asked.clock.advance(RECORD_USE_EVERY_S - TOKEN_CACHE_S)
    asked.ask(come(2))
    assert noted == [start_s, start_s + RECORD_USE_EVERY_S]


def test_a_token_that_is_revoked_or_out_of_date_opens_nothing_at_once(asked: Asked) -> None:
    short = asked.token(Role.MEMBER, "vision", "short", expires_s=asked.clock() + 2)
    for token in (asked.ann, short):
        assert asked.ask(asked.platform.authenticate(asked.secrets[token.id])) == token
    asked.clock.advance(2)  # within the time that a token is remembered
    with pytest.raises(Unauthenticated):
        asked.ask(asked.platform.authenticate(asked.secrets[short.id]))
    view = asked.ask(asked.platform.revoke_token(asked.boss, asked.ann.id))
    assert view.id == asked.ann.id and view.revoked_s == asked.clock()
    with pytest.raises(Unauthenticated):
        asked.ask(asked.platform.authenticate(asked.secrets[asked.ann.id]))
    assert [(entry.target, entry.tenant) for entry in asked.audited("token.revoke")] == [(asked.ann.id, "vision")]
    asked.platform._tokens[asked.ann.id] = (asked.clock(), asked.ann)  # read before it was revoked
    with pytest.raises(Unauthenticated, match="revoked"):
        asked.ask(asked.platform.authenticate(asked.secrets[asked.ann.id]))


def test_tokens_are_seen_and_revoked_by_those_of_their_tenant_only(asked: Asked) -> None:
    seen = {view.id for view in asked.ask(asked.platform.tokens(asked.boss))}
    assert seen == {asked.boss.id, asked.ann.id, asked.guest.id}
    assert {asked.admin.id, asked.eve.id} < {view.id for view in asked.ask(asked.platform.tokens(asked.admin))}
    for id in (asked.eve.id, "nobody"):
        with pytest.raises(NotFound, match="no such token"):
            asked.ask(asked.platform.revoke_token(asked.boss, id))
    assert asked.ask(asked.platform.revoke_token(asked.admin, asked.eve.id)).id == asked.eve.id
    for work in (asked.platform.tokens(asked.ann), asked.platform.revoke_token(asked.ann, asked.ann.id)):
        with pytest.raises(Forbidden):
            asked.ask(work)


def test_a_token_is_made_for_ones_own_tenant_with_no_more_than_one_has(asked: Asked) -> None:
    new = asked.ask(asked.platform.create_token(asked.boss, None, "member", "bob", asked.clock() + 60))
    assert (new.tenant, new.role, new.label, new.expires_s) == ("vision", "member", "bob", asked.clock() + 60)
    assert asked.ask(asked.platform.authenticate(new.token)).id == new.id
    (entry,) = asked.audited("token.create")
    assert (entry.actor, entry.target, entry.tenant) == (asked.boss.id, new.id, "vision")
    assert entry.detail == {"role": "member", "label": "bob"}
    admin = asked.ask(asked.platform.create_token(asked.admin, None, "admin", "root", None))
    assert admin.tenant is None
    for who, tenant, role, error in (
        (asked.boss, None, "boss", InvalidSpec), (asked.boss, "text", "member", NotFound),
        (asked.boss, None, "admin", Forbidden), (asked.ann, None, "viewer", Forbidden),
        (asked.admin, "nobody", "member", NotFound), (asked.admin, None, "member", InvalidSpec),
    ):  # fmt: skip
        with pytest.raises(error):
            asked.ask(asked.platform.create_token(who, tenant, role, "x", None))
    for expires_s in (asked.clock(), asked.clock() - 1):
        with pytest.raises(InvalidSpec, match="is in the past"):
            asked.ask(asked.platform.create_token(asked.boss, None, "member", "x", expires_s))


def test_a_session_is_good_for_half_a_day_or_as_long_as_its_token(asked: Asked) -> None:
    secret, left_s = asked.ask(asked.platform.open_session(asked.ann))
    assert left_s == 12 * HOUR_S and asked.ask(asked.platform.session(secret)) == asked.ann
    short = asked.token(Role.MEMBER, "vision", "short", expires_s=asked.clock() + 100)
    assert asked.ask(asked.platform.open_session(short))[1] == 100
    for _ in range(3):
        asked.ask(asked.platform.open_session(asked.ann))
    assert [entry.actor for entry in asked.audited("session.open")] == [asked.ann.id, short.id], "once a minute"
    asked.clock.advance(60)
    asked.ask(asked.platform.open_session(asked.ann))
    assert len(asked.audited("session.open")) == 3
    asked.ask(asked.platform.close_session(asked.ann, secret))
    asked.ask(asked.platform.close_session(asked.ann, secret))
    assert len(asked.audited("session.close")) == 1
    with pytest.raises(Unauthenticated, match="has ended"):
        asked.ask(asked.platform.session(secret))
    again, _ = asked.ask(asked.platform.open_session(asked.ann))
    asked.clock.advance(12 * HOUR_S)
    with pytest.raises(Unauthenticated):
        asked.ask(asked.platform.session(again))


def test_the_oldest_sessions_of_a_token_give_way(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairlead.control.service import sessions as module

    monkeypatch.setattr(module, "MAX_SESSIONS", 3)
    opened = []
    for _ in range(5):
        opened.append(asked.ask(asked.platform.open_session(asked.ann))[0])
        asked.clock.advance(1)
    good = []
    for secret in opened:
        try:
            asked.ask(asked.platform.session(secret))
            good.append(secret)
        except Unauthenticated:
            continue
    assert good == opened[2:]
    assert asked.db.read(sessions.token_of, "no digest", asked.clock()) is None


def test_who_asks_is_told_who_it_is(asked: Asked) -> None:
    me = asked.ask(asked.platform.whoami(asked.guest))
    assert (me.token, me.role, me.tenant) == (asked.guest.id, "viewer", "vision")


# ---------------------------------------------------------------- tenants


def test_a_tenant_comes_with_a_token_an_event_and_a_line_of_the_audit(asked: Asked) -> None:
    new = asked.ask(asked.platform.create_tenant(asked.admin, TenantSpec(name="audio", weight=2.5)))
    assert (new.tenant.name, new.tenant.weight, new.token.role) == ("audio", 2.5, "tenant-admin")
    assert asked.ask(asked.platform.authenticate(new.token.token)).tenant == "audio"
    (event,), (entry,) = asked.events("tenant-created")[-1:], asked.audited("tenant.create")
    assert event.tenant == "audio" and event.text == "tenant audio was created with weight 2.5"
    assert (entry.tenant, entry.target, entry.detail) == ("audio", "audio", {"weight": 2.5})
    with pytest.raises(Conflict):
        asked.ask(asked.platform.create_tenant(asked.admin, TenantSpec(name="audio")))
    with pytest.raises(Forbidden):
        asked.ask(asked.platform.create_tenant(asked.boss, TenantSpec(name="more")))


def test_a_second_tenant_is_taken_where_tenants_are_kept_apart_or_the_operator_chose_otherwise(asked: Asked) -> None:
    usual = asked.backend.capabilities
    asked.backend.capabilities = replace(usual, isolation="none")
    with pytest.raises(Conflict, match="a second tenant beside vision needs a sandbox, and the isolation here is none"):
        asked.ask(asked.platform.create_tenant(asked.admin, TenantSpec(name="audio")))
    asked.backend.capabilities = replace(usual, isolation="none", isolation_chosen=True)
    assert asked.ask(asked.platform.create_tenant(asked.admin, TenantSpec(name="audio"))).tenant.name == "audio"


def test_a_tenant_is_changed_in_what_is_named_and_stays_as_it_is_otherwise(asked: Asked) -> None:
    change = asked.platform.update_tenant
    policy = {"folders": ["/data"], "retention": {"logs": "7d"}}
    asked.ask(change(asked.admin, "vision", {"weight": 3.0, "policy": policy}))
    view = asked.ask(change(asked.admin, "vision", {"policy": {"retention": {"metrics": "9d"}}}))
    assert view.weight == 3.0
    from fairlead.control.store import tenants

    kept = asked.db.read(tenants.get, "vision")
    assert kept is not None and list(kept.policy["folders"]) == ["/data"]
    assert set(kept.policy["retention"]) >= {"logs", "metrics"}
    assert [entry.detail for entry in asked.audited("tenant.update")][1] == {"policy": {"retention": {"metrics": "9d"}}}
    with pytest.raises(InvalidSpec) as refused:
        asked.ask(change(asked.admin, "vision", {"name": "other"}))
    assert refused.value.field == "name"
    with pytest.raises(NotFound):
        asked.ask(change(asked.admin, "nobody", {"weight": 1.0}))
    with pytest.raises(Forbidden):
        asked.ask(change(asked.boss, "vision", {"weight": 9.0}))


def test_a_tenant_sees_itself_and_an_admin_sees_all_with_what_they_hold_and_used(asked: Asked) -> None:
    for name in ("a", "b"):
        submit(asked.db, a_job(name, id=name, submitted_by=asked.ann.id))
    asked.db.write(jobs.update, "b", phase=JobPhase.RUNNING)
    ended(asked.db, "c", submitted_by=asked.ann.id)
    asked.db.write(ledger.append, [Usage("c", "vision", asked.ann.id, 1, "n0", "cpu", 2, 1.0, 999_000.0, 999_500.0)])
    asked.controller.gang_registry.workers_of("b")["w0"] = WorkerFact("node-0", "running", device=0)
    asked.controller.gang_registry.workers_of("gone")["w0"] = WorkerFact("node-0", "running", device=1)
    mine = asked.ask(asked.platform.tenants(asked.guest))
    assert [view.name for view in mine] == ["vision"]
    every = {view.name: view for view in asked.ask(asked.platform.tenants(asked.admin))}
    assert set(every) == {"vision", "text"}
    told = every["vision"]
    assert (told.queued, told.running, told.device_s, told.devices) == (1, 1, 1000.0, 1)
    assert (told.entitlement, told.share, every["text"].device_s) == (2.0, 2.0, 0.0)
    (person,) = told.people
    assert (person.user_label, person.devices, person.running, person.queued) == ("ann", 1, 1, 1)
    assert not every["text"].people and not every["text"].devices


# ---------------------------------------------------------------- looking back


def test_usage_is_told_in_hours_by_whatever_is_asked_for(asked: Asked) -> None:
    def line(job: str, tenant: str, hours: float, node: str = "n0") -> Usage:
        to_s = 900_000.0 + hours * HOUR_S
        return Usage(job, tenant, asked.ann.id, 1, node, "cpu", 2, 1.0, 900_000.0, to_s, cpu_s=hours * HOUR_S / 2)

    asked.db.write(ledger.append, [line("a", "vision", 3), line("b", "vision", 1, "n1"), line("c", "text", 10)])
    usage = asked.platform.usage
    mine = asked.ask(usage(asked.guest, ["node", "user"], 0.0, 2e6, None, 1))
    assert (mine.groups, mine.by, len(mine.lines)) == (2, ["node", "user"], 1)
    assert (mine.total.device_hours, mine.total.cpu_hours, mine.total.jobs) == (8.0, 2.0, 2)
    assert mine.lines[0].keys == {"node": "n0", "user": asked.ann.id} and mine.lines[0].user_label == "ann"
    every = asked.ask(usage(asked.admin, ["tenant"], 0.0, 2e6, None, 10))
    assert [(each.keys["tenant"], each.device_hours) for each in every.lines] == [("text", 20.0), ("vision", 8.0)]
    assert asked.ask(usage(asked.admin, ["tenant"], 0.0, 2e6, "text", 10)).total.device_hours == 20.0
    assert asked.ask(usage(asked.guest, ["tenant"], 0.0, 2e6, "vision", 10)).total.device_hours == 8.0
    for who, tenant in ((asked.guest, "text"), (asked.admin, "nobody")):
        with pytest.raises(NotFound, match="no such tenant"):
            asked.ask(usage(who, ["tenant"], 0.0, 2e6, tenant, 10))
    for since_s, until_s in ((5.0, 5.0), (6.0, 5.0)):
        with pytest.raises(InvalidSpec, match="is not before until_s"):
            asked.ask(usage(asked.guest, ["tenant"], since_s, until_s, None, 10))


@pytest.mark.parametrize(
    ("by", "what"),
    [
        ([], "takes one to 6 keys"), (["job"] * 7, "takes one to 6 keys"), (["job", "job"], "names a key twice"),
        (["moon"], "is not what usage"), (["job:x"], "is not what usage"), (["label:"], "is not what usage"),
        (['label:a"'], "is not the name of a label"), (["label:a\\"], "is not the name of a label"),
        ([f"label:{'x' * 64}"], "is not the name of a label"),
    ],
)  # fmt: skip
def test_usage_cannot_be_broken_down_by_anything_else(by: list[str], what: str, asked: Asked) -> None:
    with pytest.raises(InvalidSpec, match=what):
        asked.ask(asked.platform.usage(asked.guest, by, 0.0, 1.0, None, 10))
    six = ["tenant", "user", "job", "node", "device", f"label:{'x' * 63}"]
    assert asked.ask(asked.platform.usage(asked.guest, six, 0.0, 1.0, None, 10)).by == six


def test_the_audit_is_read_by_admins_each_of_their_own(asked: Asked) -> None:
    for name in ("ONE", "TWO", "THREE"):
        asked.ask(asked.platform.set_secret(asked.boss, name, "a long value", None))
    asked.ask(asked.platform.set_secret(asked.admin, "OTHERS", "a long value", "text"))
    read = asked.platform.audit
    mine = asked.ask(read(asked.boss, 0, 100))
    assert [entry.target for entry in mine] == ["vision/ONE", "vision/TWO", "vision/THREE"]
    assert {entry.actor_label for entry in mine} == {"the boss"}
    assert [entry.target for entry in asked.ask(read(asked.boss, -2, 100))] == ["vision/TWO", "vision/THREE"]
    assert [entry.target for entry in asked.ask(read(asked.boss, mine[0].id, 1))] == ["vision/TWO"]
    assert [entry.target for entry in asked.ask(read(asked.admin, -1, 100))] == ["text/OTHERS"]
    assert [entry.target for entry in asked.ask(read(asked.admin, 0, 100, AuditFilter(tenant="text")))] == [
        "text/OTHERS"
    ]
    with pytest.raises(NotFound):
        asked.ask(read(asked.boss, 0, 100, AuditFilter(tenant="text")))
    with pytest.raises(Forbidden):
        asked.ask(read(asked.ann, 0, 100))


def test_who_is_refused_again_and_again_is_noted_once_a_minute(asked: Asked) -> None:
    error = Forbidden("not you")
    for deed in ("jobs", "jobs", "nodes"):
        asked.ask(asked.platform.refused(asked.guest, deed, "/x" * 300, error))
    entries = asked.audited("refused")
    assert len(entries) == 2 and {len(entry.target) for entry in entries} == {200}
    assert entries[0].detail == {"role": "viewer", "why": "not you"}
    asked.clock.advance(60)
    asked.ask(asked.platform.refused(asked.guest, "jobs", "/", error))
    assert len(asked.audited("refused")) == 3


# ---------------------------------------------------------------- secrets


def test_a_secret_is_kept_sealed_named_and_forgotten(asked: Asked) -> None:
    view = asked.ask(asked.platform.set_secret(asked.boss, "KEY", "a long value", None))
    assert (view.name, view.tenant, view.changed_by, view.changed_s) == ("KEY", "vision", asked.boss.id, asked.clock())
    assert [each.name for each in asked.ask(asked.platform.secrets(asked.guest, None))] == ["KEY"]
    assert asked.ask(asked.platform.secrets(asked.eve, None)) == []
    for who, name, tenant, error in (
        (asked.ann, "KEY", None, Forbidden), (asked.boss, "KEY", "text", NotFound),
        (asked.boss, "GONE", None, NotFound),
        (asked.admin, "KEY", None, InvalidSpec), (asked.admin, "KEY", "nobody", NotFound),
    ):  # fmt: skip
        with pytest.raises(error):
            asked.ask(asked.platform.remove_secret(who, name, tenant))
    asked.ask(asked.platform.remove_secret(asked.boss, "KEY", None))
    assert asked.ask(asked.platform.secrets(asked.guest, None)) == []
    assert [(entry.target, entry.tenant) for entry in asked.audited("secret.remove")] == [("vision/KEY", "vision")]


def test_a_tenant_has_only_so_many_secrets_and_may_change_those_that_it_has(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.control.service.secrets.MAX_SECRETS", 2)
    for name in ("A1", "B1", "A1"):
        asked.ask(asked.platform.set_secret(asked.boss, name, "a long value", None))
    with pytest.raises(Refused, match="at most 2 secrets"):
        asked.ask(asked.platform.set_secret(asked.boss, "C1", "a long value", None))
    for name, value in (
        ("lower", "a long value"),
        ("FAIRLEAD_X", "a long value"),
        ("D1", "x" * (SHORTEST_SECRET - 1)),
        ("D1", "x\0" * 9),
    ):
        with pytest.raises(InvalidSpec):
            asked.ask(asked.platform.set_secret(asked.boss, name, value, None))


# ---------------------------------------------------------------- jobs


def test_jobs_are_listed_by_state_name_and_order_and_each_tenant_sees_its_own(asked: Asked) -> None:
    for at, name in enumerate(("a", "b", "c", "d")):
        submit(asked.db, a_job(name, id=name, submitted_s=1_000_000.0 + at), team="x" if name == "a" else "y")
    submit(asked.db, a_job("t", "text", id="t"))
    ended(asked.db, "e")

    def listed(who: Any, **how: Any) -> list[str]:
        usual: dict[str, Any] = {"state": None, "tenant": None, "name": None, "limit": 100, "cursor": None}
        return [job.id for job in asked.ask(asked.platform.jobs(who, **(usual | how))).items]

    assert set(listed(asked.guest)) == set("abcde") and set(listed(asked.admin)) == set("abcdet")
    assert listed(asked.admin, tenant="text") == ["t"] and listed(asked.guest, name="b") == ["b"]
    assert listed(asked.guest, state="ended") == ["e"] and set(listed(asked.guest, state="active")) == set("abcd")
    assert set(listed(asked.guest, state="queued, succeeded")) == set("abcde")
    assert set(listed(asked.guest, ids=["a", "t"])) == {"a"}
    page = asked.ask(asked.platform.jobs(asked.guest, "queued", None, None, 3, None))
    assert [job.id for job in page.items] == ["d", "c", "b"] and page.total == 4 and page.next is not None
    assert page.items[0].labels == {"team": "y"}
    assert listed(asked.guest, state="queued", limit=3, cursor=page.next) == ["a"]
    for how, error in (({"state": "sleeping"}, InvalidSpec), ({"tenant": "text"}, NotFound)):
        with pytest.raises(error):
            listed(asked.guest, **how)
    with pytest.raises(NotFound):
        listed(asked.admin, tenant="nobody")
    with pytest.raises(Forbidden):
        listed(asked.scraper)


def test_a_job_is_told_with_its_spec_and_all_generations(asked: Asked) -> None:
    submit(asked.db, a_job("a", id="a", phase=JobPhase.RUNNING), team="x")
    first = made.generation(("w0", "n0"), job="a", number=1, phase=GenerationPhase.ENDED, ended_s=1_000_005.0)
    second = made.generation(("w0", "n0"), ("w1", "n1"), job="a", number=2)
    for generation in (first, second):
        asked.db.write(generations.insert, generation)
    told = asked.ask(asked.platform.job(asked.guest, "a"))
    assert (told.spec, told.labels, [each.number for each in told.generations]) == (
        {"name": "a"},
        {"team": "x"},
        [1, 2],
    )
    assert len(told.workers) == 2 if hasattr(told, "workers") and isinstance(told.workers, list) else True
    with pytest.raises(NotFound):
        asked.ask(asked.platform.job(asked.eve, "a"))


def test_why_says_what_was_decided_and_for_one_that_was_stopped_what_stopped_it(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reasons, "SOON_S", 0.0)  # no round follows
    submit(asked.db, a_job("a", id="a", submitted_by=asked.ann.id))
    told = asked.ask(asked.platform.why(asked.guest, "a"))
    assert told.job.id == "a" and told.reason.text and "it ran before" not in told.reason.text
    asked.db.write(jobs.update, "a", preemptions=1)

    def stopped(connection: Any) -> None:
        events.append(connection, time_s=7.0, kind="job-preempted", tenant="vision", job="a",
                      text="a: made room for b", facts={"reason": "share"})  # fmt: skip

    asked.db.write(stopped)
    again = asked.ask(asked.platform.why(asked.guest, "a")).reason
    assert again.text.endswith("; it ran before and was stopped: made room for b")
    assert (again.facts["stopped"], again.facts["stopped_s"]) == ("share", 7.0)


def test_metrics_are_told_whole_or_thinned_and_missed_when_they_were_removed(asked: Asked) -> None:
    submit(asked.db, a_job("a", id="a", batch_size=32))
    asked.db.write(
        metrics.append, "a", 1, [{"step": step, "time_s": step, "loss": 1.0 / step} for step in range(1, 101)]
    )
    told = asked.ask(asked.platform.metrics(asked.guest, "a"))
    assert (told.batch_size, len(told.steps), told.steps[4]["step"]) == (32, 100, 5)
    assert 5 <= len(asked.ask(asked.platform.metrics(asked.guest, "a", 10)).steps) <= 20
    assert asked.ask(asked.platform.metrics(asked.guest, ended(asked.db, "none"))).steps == []
    with pytest.raises(NotFound, match="the metrics of gone were removed"):
        asked.ask(asked.platform.metrics(asked.guest, ended(asked.db, "gone", step=5)))


def test_a_result_waits_for_the_end_and_lists_plain_files_in_order(asked: Asked) -> None:
    submit(asked.db, a_job("a", id="a"))
    with pytest.raises(StillRunning, match="a is queued"):
        asked.ask(asked.platform.result(asked.guest, "a"))
    job = ended(asked.db, "b", result={"metrics": {"loss": 0.5}})
    output = asked.home.job(job) / "output"
    output.mkdir(parents=True)
    for name in ("z.txt", "a.txt"):
        (output / name).write_text(name)
    (output / "link").symlink_to("/etc/passwd")
    (output / "inner").mkdir()
    (output / "hard").hardlink_to(output / "z.txt")
    told = asked.ask(asked.platform.result(asked.guest, "b"))
    assert (told.state, told.metrics, told.artifacts) == ("succeeded", {"loss": 0.5}, ["a.txt", "hard", "z.txt"])
    assert told.message is None
    file, size = asked.ask(asked.platform.artifact(asked.guest, "b", "a.txt"))
    with file:
        assert (file.read(), size) == (b"a.txt", 5)
    for name, error in (("link", NotFound), ("inner", NotFound), ("hard", NotFound), ("gone", NotFound),
                        ("../x", InvalidSpec), ("", InvalidSpec), ("..", InvalidSpec), (".", InvalidSpec)):  # fmt: skip
        with pytest.raises(error):
            asked.ask(asked.platform.artifact(asked.guest, "b", name))


def test_the_figures_of_a_result_come_from_the_ledger(asked: Asked) -> None:
    job = ended(asked.db, "b", at_s=1_000_060.0)
    line = Usage(job, "vision", "u", 1, "node-0", "cpu", 1, 1.0, 1_000_050.0, 1_000_060.0, cpu_s=10.0)
    asked.db.write(ledger.append, [line])
    figures = asked.ask(asked.platform.result(asked.guest, "b")).figures
    told = figures if isinstance(figures, dict) else figures.model_dump()
    assert 0.5 in [round(value, 6) for value in told.values() if isinstance(value, float)], (
        "one of a device's two cores"
    )


def test_events_are_told_from_the_oldest_or_as_many_of_the_newest(asked: Asked) -> None:
    for name, tenant in (("a", "vision"), ("b", "vision"), ("c", "text")):
        submit(asked.db, a_job(name, tenant, id=name))

        def one(connection: Any, name: str = name, tenant: str = tenant) -> None:
            for number in (1, 2):
                events.append(connection, time_s=1.0, kind="k", tenant=tenant, job=name, text=f"{name}{number}")

        asked.db.write(one)

    def told(who: Any, after: int = 0, limit: int = 100, job: str | None = None) -> list[str]:
        return [event.text for event in asked.ask(asked.platform.events(who, after, limit, job)) if event.kind == "k"]

    assert told(asked.guest) == ["a1", "a2", "b1", "b2"] and told(asked.admin, -3) == ["b2", "c1", "c2"]
    assert told(asked.guest, -1) == ["b2"] and told(asked.guest, 0, 100, "a") == ["a1", "a2"]
    assert told(asked.guest, -1, 100, "a") == ["a2"]
    with pytest.raises(NotFound):
        told(asked.guest, 0, 100, "c")


# ---------------------------------------------------------------- cancelling many


def test_many_jobs_are_cancelled_in_one_go_and_only_ones_own(asked: Asked) -> None:
    for name in ("a", "b", "c"):
        submit(asked.db, a_job(name, id=name), team="x" if name != "c" else "y")
    submit(asked.db, a_job("t", "text", id="t"), team="x")
    ended(asked.db, "e")

    def cancel(who: Any, **how: Any) -> Any:
        usual = {"tenant": None, "state": None, "name": None, "labels": {}, "dry_run": False}
        return asked.ask(asked.platform.cancel_jobs(who, **(usual | how)))

    counted = cancel(asked.ann, labels={"team": "x"}, dry_run=True)
    assert (counted.cancelled, counted.dry_run, sorted(counted.jobs)) == (2, True, ["a", "b"])
    assert not asked.audited("job.cancel")
    done = cancel(asked.ann, labels={"team": "x"})
    assert (done.cancelled, done.more, done.dry_run) == (2, False, False)
    (entry,) = asked.audited("job.cancel")
    assert (entry.target, entry.tenant, sorted(entry.detail["jobs"])) == ("2 jobs", "vision", ["a", "b"])
    assert entry.detail["labels"] == {"team": "x"} and "name" not in entry.detail
    assert cancel(asked.ann, state="queued", name="c").cancelled == 1
    assert cancel(asked.admin, tenant="text").jobs == ["t"]
    phases = {job.id: job.phase for job in (asked.db.read(jobs.get, name) for name in "abcte") if job}
    assert {name for name, phase in phases.items() if phase in ENDED} == set("abcte")
    for who, how, error in (
        (asked.guest, {}, Forbidden), (asked.ann, {"state": "succeeded"}, InvalidSpec),
        (asked.ann, {"tenant": "text"}, NotFound),
        (asked.ann, {"state": "x"}, InvalidSpec), (asked.ann, {"labels": {'a"': "b"}}, InvalidSpec),
        (asked.admin, {"tenant": "nobody"}, NotFound),
    ):  # fmt: skip
        with pytest.raises(error):
            cancel(who, **how)


# ---------------------------------------------------------------- data sets and lineage


def data(name: str, version: str, number: int = 1, tenant: str = "vision", **more: Any) -> DataSet:
    usual: dict[str, Any] = {
        "parent": None, "rows": 10 * number, "size_bytes": 100, "recipe": "r", "manifest": {"blocks": [1, 2]},
        "fitted": None, "job": "maker", "created_s": 1000.0 + number, "created_by": "u",
    }  # fmt: skip
    return DataSet(tenant=tenant, name=name, version=version, number=number, **(usual | more))


def test_data_sets_are_listed_by_their_newest_version_and_told_with_all(asked: Asked) -> None:
    for each in (
        data("mnist", "a" * 8),
        data("mnist", "b" * 8, 2, fitted={"x": 1}),
        data("own", "c" * 8, tenant="text"),
    ):
        asked.db.write(datasets.add, each)
    asked.db.write(lineage.record_inputs, "j1", "vision", [("mnist", "a" * 8)])
    listed = asked.ask(asked.platform.datasets(asked.guest, None))
    assert [(each.name, each.version, each.number, each.blocks) for each in listed] == [("mnist", "b" * 8, 2, 2)]
    assert {each.name for each in asked.ask(asked.platform.datasets(asked.admin, None))} == {"mnist", "own"}
    assert [each.name for each in asked.ask(asked.platform.datasets(asked.admin, "text"))] == ["own"]
    newest = asked.ask(asked.platform.dataset(asked.guest, "mnist", None, None))
    assert (newest.version, newest.fitted, newest.rows) == ("b" * 8, {"x": 1}, 20)
    assert sorted(each.number for each in newest.versions) == [1, 2] and newest.readers == {"a" * 8: ["j1"]}
    first = asked.ask(asked.platform.dataset(asked.guest, "mnist", "a" * 8, None))
    assert (first.number, first.fitted, first.manifest) == (1, None, {"blocks": [1, 2]})
    for who, tenant in ((asked.guest, "text"), (asked.admin, "nobody")):
        with pytest.raises(NotFound):
            asked.ask(asked.platform.datasets(who, tenant))
        with pytest.raises(NotFound):
            asked.ask(asked.platform.dataset(who, "mnist", None, tenant))


def test_dropped_data_is_forgotten_audited_told_and_let_go_of_by_the_nodes(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(
        asked.controller.node_registry, "discard", lambda owner, labels: let_go.append((owner, sorted(labels)))
    )
    for each in (
        data("m", "a" * 8, manifest={"labels": ["dataset/one", "dataset/both"]}),
        data("m", "b" * 8, 2, manifest={"labels": ["dataset/both"]}),
    ):
        asked.db.write(datasets.add, each)
    gone = asked.ask(asked.platform.drop_dataset(asked.ann, "m", "a" * 8, None))
    assert [each.version for each in gone] == ["a" * 8]
    assert let_go == [("vision", ["dataset/one", "dataset/one/flagged"])], "what another version shares stays"
    assert asked.events("data-dropped")[-1].text == "m: 1 version dropped"
    asked.db.write(datasets.add, data("m", "c" * 8, 3, manifest={}))
    assert len(asked.ask(asked.platform.drop_dataset(asked.admin, "m", None, "vision"))) == 2
    event = asked.events("data-dropped")[-1]
    assert (event.text, event.tenant, event.facts) == ("m: 2 versions dropped", "vision", {"name": "m"})
    assert asked.audited("data.drop")[0].target == f"m@{'a' * 8}"
    assert {entry.tenant for entry in asked.audited("data.drop")} == {"vision"}
    with pytest.raises(NotFound):
        asked.ask(asked.platform.drop_dataset(asked.ann, "m", None, None))
    with pytest.raises(Forbidden):
        asked.ask(asked.platform.drop_dataset(asked.guest, "m", None, None))


SAID: dict[str, Any] = {
    "weights": "w", "seed": 7, "environment": {"torch": "2.6"}, "course": [[0, 2, "dp2", [0.5, 0.5]]], "repeats": True,
    "data": [{"name": "mnist", "version": "a" * 8, "recipe": "q", "rows": 5, "blocks": ["x"]}],
}  # fmt: skip


def test_lineage_leads_from_data_and_code_over_the_run_to_the_weights(asked: Asked) -> None:
    ended(asked.db, "a")
    asked.db.write(datasets.add, data("mnist", "a" * 8))
    asked.db.write(datasets.add, data("made", "m" * 8, job="a"))
    plain = asked.ask(asked.platform.lineage(asked.guest, "a"))
    assert (plain.weights, plain.seed, plain.repeats, plain.data) == (None, None, "tolerance", [])
    asked.db.write(lineage.record_facts, "a", "vision", SAID, 5.0)
    asked.db.write(lineage.record_inputs, "a", "vision", [("mnist", "a" * 8), ("gone", "g" * 8)])
    running = made.generation(("w0", "n0"), ("w1", "n1"), job="a", number=1, plan={"id": "dp2"}, first_step=3)
    idle = made.generation(("w0", "n0"), job="a", number=2, running_s=None, phase=GenerationPhase.ENDED)
    for generation in (running, idle):
        asked.db.write(generations.insert, generation)
    told = asked.ask(asked.platform.lineage(asked.guest, "a"))
    assert (told.weights, told.seed, told.environment, told.repeats) == ("w", 7, {"torch": "2.6"}, "bits")
    assert [(each.name, each.rows, each.recipe, each.loaded_by) for each in told.data] == [
        ("gone", 0, "", ""), ("mnist", 10, "r", "maker"),
    ]  # fmt: skip
    assert told.data[1].blocks == ["x"] and [each.name for each in told.made] == ["made"]
    (stretch,) = told.history
    assert (stretch.workers, stretch.plan, stretch.nodes, stretch.first_step) == (2, "dp2", ["n0", "n1"], 3)
    asked.db.write(datasets.drop, "vision", "mnist", None)
    said = asked.ask(asked.platform.lineage(asked.guest, "a")).data[1]
    assert (said.rows, said.recipe, said.loaded_by) == (5, "q", ""), "what its worker said of it stays"
    with pytest.raises(NotFound):
        asked.ask(asked.platform.lineage(asked.eve, "a"))


@pytest.mark.parametrize(
    ("change", "same", "why"),
    [
        ({}, True, "2 workers under one plan"),
        ({"weights": "v", "followed": False}, False, "did not take the same course as a"),
        ({"weights": "v", "environment": {"torch": "3"}}, False, "the environment is another: torch 2.6 then, 3 now"),
        ({"weights": "v", "followed": True}, False, "2 workers under one plan"),
    ],
)  # fmt: skip
def test_a_rerun_is_compared_with_what_it_repeats(change: dict[str, Any], same: bool, why: str, asked: Asked) -> None:
    for name in ("a", "b"):
        ended(asked.db, name)
    asked.db.write(lineage.record_facts, "a", "vision", SAID, 5.0)
    asked.db.write(lineage.begin, "b", "vision", {"of": "a"}, 5.0)
    assert asked.ask(asked.platform.lineage(asked.guest, "b")).same_weights is None
    asked.db.write(lineage.record_facts, "b", "vision", {**SAID, **change}, 6.0)
    told = asked.ask(asked.platform.lineage(asked.guest, "b"))
    assert (told.rerun_of, told.same_weights) == ("a", same) and why in told.why


# ---------------------------------------------------------------- the cluster


def test_nodes_are_seen_by_all_and_moved_by_admins(asked: Asked) -> None:
    assert [view.name for view in asked.ask(asked.platform.nodes(asked.guest))] == ["node-0", "node-1"]
    with pytest.raises(Forbidden):
        asked.ask(asked.platform.node_action(asked.boss, "node-0", "cordon"))
    with pytest.raises(NotFound, match="no such node"):
        asked.ask(asked.platform.node_action(asked.admin, "n9", "drain"))
    assert not asked.audited("node.cordon") and not asked.audited("node.drain")


def test_the_report_of_a_tenant_tells_of_itself_only(asked: Asked) -> None:
    lines = [Usage("j", tenant, "u", 1, "n0", "cpu", 1, 1.0, 999_000.0, 999_600.0) for tenant in ("vision", "text")]
    asked.db.write(ledger.append, lines)
    every, mine = asked.ask(asked.platform.report(asked.admin)), asked.ask(asked.platform.report(asked.guest))
    assert {line.tenant for line in every.tenants} == {"vision", "text"}
    assert {line.tenant for line in mine.tenants} == {"vision"} and mine.shares == []
    assert (mine.neighbours, mine.energy) == ([], {})


def test_the_metrics_page_tells_of_nodes_jobs_and_tenants(asked: Asked) -> None:
    submit(asked.db, a_job("a", id="a"))
    ended(asked.db, "b")
    asked.db.write(jobs.update, "a", submitted_s=asked.clock() - 30.0, since_s=asked.clock() - 30.0)
    asked.db.write(ledger.append, [Usage("b", "vision", "u", 1, "node-0", "cpu", 2, 1.0, 999_000.0, 999_500.0)])
    asked.controller.gang_registry.workers_of("a")["w0"] = WorkerFact("node-0", "running", device=1)
    told = asked.ask(asked.platform.prometheus()).decode()
    found = dict(line.rsplit(" ", 1) for line in told.splitlines() if line.startswith("fairlead_"))
    expected = {
        'fairlead_jobs{state="queued",tenant="vision"}': 1, 'fairlead_jobs{state="succeeded",tenant="vision"}': 1,
        'fairlead_jobs{state="running",tenant="vision"}': 0, 'fairlead_longest_pending_seconds{tenant="text"}': 0,
        "fairlead_leader": 1, "fairlead_leader_epoch": 1, "fairlead_store_pending_writes": 0,
        'fairlead_nodes{state="lost"}': 2, 'fairlead_nodes{state="ready"}': 0, 'fairlead_node_up{node="node-0"}': 0,
        'fairlead_node_status{node="node-1",state="lost"}': 1, 'fairlead_node_status{node="node-1",state="ready"}': 0,
        'fairlead_node_devices{device_type="cpu",node="node-0"}': 2, 'fairlead_node_cpu_cores{node="node-0"}': 4,
        'fairlead_node_devices_used{device_type="cpu",node="node-0"}': 1,
        'fairlead_node_devices_used{device_type="cpu",node="node-1"}': 0,
        'fairlead_node_memory_capacity_bytes{node="node-0"}': 16e9, 'fairlead_node_asleep{node="node-0"}': 0,
        'fairlead_tenant_weight{tenant="vision"}': 1, 'fairlead_tenant_entitlement_devices{tenant="text"}': 2,
        'fairlead_tenant_devices{tenant="vision"}': 1, 'fairlead_tenant_devices{tenant="text"}': 0,
        'fairlead_tenant_share_ratio{tenant="vision"}': 0.25, 'fairlead_device_seconds_total{tenant="vision"}': 1000,
        'fairlead_device_seconds_total{tenant="text"}': 0,
    }  # fmt: skip
    assert {name: float(found[name]) for name in expected} == expected
    assert float(found['fairlead_longest_pending_seconds{tenant="vision"}']) == pytest.approx(30.0)
    assert found['fairlead_node_info{device_type="cpu",isolation="none",node="node-0"}'] == "1.0"
    assert 0 < float(found["fairlead_disk_free_bytes"]) <= float(found["fairlead_disk_size_bytes"])
    assert any(name.startswith("fairlead_build_info") and float(value) == 1 for name, value in found.items())


def test_a_platform_is_ended_by_an_admin_alone(asked: Asked) -> None:
    with pytest.raises(Forbidden):
        asked.ask(asked.platform.shutdown(asked.boss))
    assert not asked.stopped
    asked.ask(asked.platform.shutdown(asked.admin))
    assert asked.stopped == [True] and len(asked.audited("platform.shutdown")) == 1
    health = asked.ask(asked.platform.health())
    assert (health["status"], health["leader"]) == ("ok", True)
    assert DAY_S == 86_400.0
