"""Records as people read them: what was stored names jobs, and who reads it is told only those that are its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead import wire
from fairlead.cluster import Member, Node, NodeState
from fairlead.control.accounting.budgets import Spending
from fairlead.control.job_views import (
    backs_off,
    event_view,
    generation_views,
    job_fields,
    node_state,
    node_views,
    person_view,
    reason_of,
    sla_met,
    tenant_view,
)
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.records import Generation, GenerationPhase, JobPhase, LoggedEvent, Tenant
from fairlead.control.tenant_tree import TenantShare
from fairlead.scheduling.state import Hold, Reason
from fairlead.views.jobs import ReasonView
from tests.control.made import job, tenant

OLD = "shrinks from 4 to 3 workers: gives 1 device to waiting job small-1 of tenant nlp, whose promise would be broken"
FOR_STRANGERS = OLD.replace("waiting job small-1 of tenant nlp", "a waiting job of another tenant")
SHOWN = pytest.mark.parametrize(("tenant", "text"), [(None, OLD), ("nlp", OLD), ("vision", FOR_STRANGERS)])
GENERATION = Generation("big-1", 2, GenerationPhase.RUNNING, (), "make-room", OLD, created_s=1.0)


@SHOWN
def test_a_generation_that_was_stored_long_ago_names_nobody_to_strangers(tenant: str | None, text: str) -> None:
    (view,) = generation_views([GENERATION], tenant)
    assert (view.reason.code, view.reason.text) == ("make-room", text)


@SHOWN
def test_why_a_job_runs_as_it_does_names_nobody_to_strangers(tenant: str | None, text: str) -> None:
    reason = reason_of(job(id="big-1"), GENERATION, None, tenant)
    assert reason is not None and reason.text == text


@SHOWN
def test_an_event_that_was_stored_long_ago_names_nobody_to_strangers(tenant: str | None, text: str) -> None:
    event = LoggedEvent(1, 1.0, "job-resizing", f"big-1: {OLD}", "vision", "big-1", facts={"why": [OLD], "size": 3})
    view = event_view(event, tenant)
    assert view.text == f"big-1: {text}" and view.facts == {"why": [text], "size": 3}


@pytest.mark.parametrize(("start_s", "shown"), [
    (1e15, None), (float("inf"), None), (float("nan"), None), (4e8, None), (2e8, 2e8), (0.0, 0.0),
])  # fmt: skip
def test_a_start_in_a_time_that_nobody_can_tell_is_not_known(start_s: float, shown: float | None) -> None:
    waits = job(id="big-1", phase=JobPhase.QUEUED)
    hold = Hold("big-1", Reason("full", "all devices are taken", {}), expected_start_s=start_s)
    assert job_fields(waits, {}, [], hold, 100.0, None)["expected_start_s"] == shown


# ---------------------------------------------------------------- a job, as it is told


def ran(
    number: int = 1, *, plan: Any = None, running_s: float | None = 5.0, nodes: tuple[str, ...] = ("n1", "n0")
) -> Any:
    members = tuple(Member(f"w{at}", len(nodes) - 1 - at, node, at) for at, node in enumerate(nodes))
    return Generation(
        "j", number, GenerationPhase.RUNNING, members, "started", "starts", 1.0, running_s=running_s, plan=plan
    )


@pytest.mark.parametrize(
    ("changes", "now_s", "kept"),
    [
        ({}, 1.0, None), ({"finish_by_s": 9.0}, 9.0, None), ({"finish_by_s": 9.0}, 9.1, False),
        ({"finish_by_s": 9.0, "phase": JobPhase.FAILED}, 1.0, False),
        ({"finish_by_s": 9.0, "phase": JobPhase.SUCCEEDED, "finished_s": 9.0}, 20.0, True),
        ({"finish_by_s": 9.0, "phase": JobPhase.SUCCEEDED, "finished_s": 9.1}, 20.0, False),
        ({"finish_by_s": 9.0, "phase": JobPhase.CANCELLED, "finished_s": 5.0}, 20.0, None),
        ({"start_by_s": 9.0}, 9.0, None), ({"start_by_s": 9.0}, 9.1, False),
        ({"start_by_s": 9.0, "started_s": 9.0}, 99.0, True), ({"start_by_s": 9.0, "started_s": 9.1}, 9.0, False),
        ({"start_by_s": 9.0, "started_s": 9.0, "finish_by_s": 5.0}, 99.0, False),
    ],
)  # fmt: skip
def test_a_promise_is_open_until_it_was_kept_or_broken(
    changes: dict[str, Any], now_s: float, kept: bool | None
) -> None:
    assert sla_met(job(**changes), now_s) is kept


def test_why_a_job_is_as_it_is_depends_on_where_it_is() -> None:
    hold = Hold("j", Reason("full", "no room", {"n": 1}))
    queued = job(phase=JobPhase.QUEUED, since_s=10.0)
    later = job(phase=JobPhase.QUEUED, since_s=10.0, back_off_until_s=70.0, back_off_why="it died")
    assert reason_of(queued, None, None, None) is not None and reason_of(queued, None, None, None).code == "undecided"
    assert reason_of(later, ran(), hold, None) == ReasonView(code="full", text="no room", facts={"n": 1})
    told = reason_of(later, None, None, None)
    assert told is not None and (told.code, told.facts) == ("back-off", {"until_s": 70.0})
    assert told.text == "backs off until 00:01:10 UTC, when it starts over: it died"
    stops = reason_of(job(phase=JobPhase.STOPPING, outcome="preempted"), ran(), hold, None)
    assert stops is not None and (stops.code, "preempted" in stops.text) == ("preempted", True)
    assert reason_of(job(phase=JobPhase.STOPPING), None, None, None).code == "stopping"  # type: ignore[union-attr]
    for phase, text in (
        (JobPhase.SUCCEEDED, "it finished"),
        (JobPhase.FAILED, "it failed"),
        (JobPhase.CANCELLED, "it was cancelled"),
    ):
        assert reason_of(job(phase=phase), ran(), hold, None) == ReasonView(code=str(phase), text=text)
    assert reason_of(job(phase=JobPhase.FAILED, message="no"), None, None, None).text == "no"  # type: ignore[union-attr]
    assert reason_of(job(), ran(), None, None).code == "started" and reason_of(job(), None, None, None) is None  # type: ignore[union-attr]


@pytest.mark.parametrize(("until_s", "since_s", "phase", "waits"), [
    (70.0, 10.0, JobPhase.QUEUED, True), (10.0, 10.0, JobPhase.QUEUED, False), (5.0, 10.0, JobPhase.QUEUED, False),
    (None, 10.0, JobPhase.QUEUED, False), (70.0, 10.0, JobPhase.RUNNING, False),
])  # fmt: skip
def test_only_who_waits_in_the_queue_backs_off(
    until_s: float | None, since_s: float, phase: JobPhase, waits: bool
) -> None:
    told = job(phase=phase, since_s=since_s, back_off_until_s=until_s, back_off_why="x")
    assert backs_off(told) is waits
    assert job_fields(told, {}, [], None, 10.0, None)["expected_start_s"] == (until_s if waits else None)


def test_the_seats_that_are_told_are_those_that_run() -> None:
    live = [ran(1), ran(2, running_s=None, nodes=("n5",))]
    fields = job_fields(
        job(result={"metrics": {"a": 1.0}, "left_out": 3}, recoveries=4, recovery_s=2.0),
        {"k": "v"},
        live,
        None,
        1.0,
        None,
    )
    assert (fields["workers"], fields["nodes"], fields["labels"]) == (2, ["n0", "n1"], {"k": "v"})
    assert (fields["metrics"], fields["metrics_left_out"], fields["recovery_s"]) == ({"a": 1.0}, 3, 0.5)
    assert fields["sla"] == {} and fields["reason"].code == "started"
    coming = job_fields(job(finish_by_s=9.0), {}, live[1:], None, 1.0, None)
    assert (coming["workers"], coming["nodes"], coming["sla"]) == (1, ["n5"], {"finish_by_s": 9.0})
    none = job_fields(job(start_by_s=9.0), {}, [], None, 1.0, None)
    assert (none["workers"], none["nodes"], none["sla"], none["recovery_s"]) == (0, [], {"start_by_s": 9.0}, None)
    assert none["plan"] is None


# ---------------------------------------------------------------- nodes, tenants, people


def test_a_tenant_is_told_of_its_own_workers_and_that_others_have_devices() -> None:
    nodes = {name: Node(name, {"cpu": 4.0, "memory": 8e9, "device": 4.0}, labels=frozenset({"b", "a"}), topology=("z",))
             for name in ("n1", "n0")}  # fmt: skip
    workers = {
        "mine": {"w1": WorkerFact("n0", "joined", device=2), "w0": WorkerFact("n0", "joined", device=0)},
        "theirs": {
            "w0": WorkerFact("n0", "joined", device=1), "w1": WorkerFact("n0", "finished", device=3),
            "w2": WorkerFact("n0", "joined", device=3, exited=True),
        },
    }  # fmt: skip
    seen = wire.Telemetry(0.5, 7, temperature_c=40.0, power_w=90.0, grid_trouble="late")
    more = {"n0": {"isolation": "full", "warm": 1}}
    owners = {"mine": "vision", "theirs": "text"}
    first, second = node_views(nodes, workers, {"n0": seen}, more, owners, "vision")
    assert [(s.device, s.job, s.tenant, s.worker) for s in first.slots] == [
        (0, "mine", "vision", "w0"), (1, None, None, None), (2, "mine", "vision", "w1")
    ]  # fmt: skip
    assert (first.name, first.devices_used, first.devices, first.jobs) == ("n0", 3, 4, ["mine"])
    assert (first.cpu, first.memory_bytes, first.cpu_fraction, first.memory_used_bytes) == (4.0, 8_000_000_000, 0.5, 7)
    assert (first.temperature_c, first.power_w, first.grid_trouble, first.isolation) == (40.0, 90.0, "late", "full")
    assert (first.warm, first.places) == (True, ["z", "a", "b"])
    assert (second.name, second.slots, second.cpu_fraction, second.isolation) == ("n1", [], None, "none")
    assert (second.temperature_c, second.grid_trouble, second.warm) == (None, "", False)
    bare = {"n2": Node("n2", {}, asleep=True)}
    (waking,) = node_views(bare, {}, {}, {"n2": {"state": "waking"}}, {}, None)
    assert (waking.state, waking.memory_bytes, waking.cpu, waking.devices) == ("waking", 0, 0.0, 0)
    assert (
        node_views({"n0": replace(nodes["n0"], state=NodeState.DRAINING)}, workers, {}, {}, {}, None)[0].state
        == "draining"
    )
    assert (
        node_views({"n1": replace(nodes["n1"], state=NodeState.DRAINING)}, workers, {}, {}, {}, None)[0].state
        == "drained"
    )
    every, _ = node_views(nodes, workers, {}, {}, owners, None)
    assert [(s.job, s.tenant) for s in every.slots] == [("mine", "vision"), ("theirs", "text"), ("mine", "vision")]
    assert every.jobs == ["mine", "theirs"]


@pytest.mark.parametrize(("changes", "held", "waking", "state"), [
    ({}, False, False, "ready"), ({"asleep": True}, False, False, "asleep"), ({"asleep": True}, False, True, "waking"),
    ({"asleep": True, "state": NodeState.LOST}, False, False, "lost"), ({"outdated": True}, True, False, "outdated"),
    ({"outdated": True, "state": NodeState.CORDONED}, True, False, "cordoned"),
    ({"state": NodeState.DRAINING}, True, False, "draining"), ({"state": NodeState.DRAINING}, False, False, "drained"),
])  # fmt: skip
def test_a_node_has_one_word_for_what_it_is_at(changes: dict[str, Any], held: bool, waking: bool, state: str) -> None:
    assert node_state(Node("n", {}, **changes), held=held, waking=waking) == state


def test_a_tenant_is_shown_with_what_it_has_and_what_waits() -> None:
    counts = {JobPhase.QUEUED: 2, JobPhase.RUNNING: 3, JobPhase.STOPPING: 1, JobPhase.FAILED: 4, JobPhase.SUCCEEDED: 5}
    spent = Spending("vision", 10.0, "day", 0.8, 10.0, 1.0, 2.0)
    view = tenant_view(tenant("vision", 2.0), TenantShare(0.5, 0.25, 6, 1.5), 3, counts, 70.0, spent)
    assert (view.running, view.queued, view.devices, view.device_s, view.weight) == (4, 2, 3, 70.0, 2.0)
    assert (view.entitlement, view.share, view.devices_below, view.borrowed) == (0.5, 0.25, 6, 1.5)
    assert view.spending is not None and view.spending.used_up and view.people == []
    assert (view.spending.device_hours, view.spending.per, view.spending.used_hours) == (10.0, "day", 10.0)
    assert (view.spending.since_s, view.spending.until_s) == (1.0, 2.0)
    less = tenant_view(tenant("vision"), TenantShare(0, 0, 0, 0), 0, {}, 0.0, replace(spent, used_hours=9.9))
    assert less.spending is not None and not less.spending.used_up and (less.running, less.queued) == (0, 0)
    assert tenant_view(tenant("vision"), TenantShare(0, 0, 0, 0), 0, {}, 0.0).spending is None
    whole = Tenant(
        "a", 3.0, 7, {"start_within": 5}, 1, 9.0, {"log": 123}, {"device_hours": 4}, "b", {"cpu": 1}, {"cpu": 2}
    )
    full = tenant_view(whole, TenantShare(0, 0, 0, 0), 0, {}, 0.0, people=[person_view("ann", None, 1, {})])
    assert (full.name, full.quota, full.sla, full.budget) == ("a", 7, {"start_within": 5}, {"device_hours": 4})
    assert (full.created_s, full.parent, full.guarantee, full.most) == (9.0, "b", {"cpu": 1}, {"cpu": 2})
    assert full.policy["log"] == 123 and [each.user for each in full.people] == ["ann"]
    person = person_view("ann", "Ann", 2, {JobPhase.QUEUED: 1, JobPhase.RUNNING: 2})
    assert (person.user, person.user_label, person.devices, person.running, person.queued) == ("ann", "Ann", 2, 2, 1)


def test_candidates_that_ran_show_what_was_measured() -> None:
    one = {"id": "single", "reason": "alone", "step_s": 1.0, "measured_step_s": 1.5}
    rows = [{"id": "single", "predicted_step_s": 1.0}, {"id": "dp2", "predicted_step_s": 0.6}]
    two = {"id": "dp2", "reason": "faster", "workers_used": 2, "candidates": rows}
    first, second = generation_views([ran(1, plan=one), ran(2, plan=two)], None)
    assert first.plan is not None and second.plan is not None and first.plan.candidates == []
    assert [(row["id"], row["measured_step_s"]) for row in second.plan.candidates] == [("single", 1.5), ("dp2", None)]
    assert (second.number, second.phase, [member.worker for member in second.members]) == (2, "running", ["w0", "w1"])
    fields = job_fields(job(), {}, [ran(2, plan=two)], None, 1.0, None)
    assert fields["plan"].id == "dp2" and fields["plan"].candidates == []
