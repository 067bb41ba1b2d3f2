"""How work comes in, is looked ahead for and is taken back: what is stored, told and written down."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fairlead import wire
from fairlead.cluster import DEVICE, Node, NodeState
from fairlead.control.job_views import job_view, node_state, node_views, plan_view, sla_met
from fairlead.control.reconcile.cluster_state import job_state
from fairlead.control.reconcile.data_locality import (
    bytes_held,
    explain_data_locality,
    nodes_holding,
    prefer_nodes_with_data,
)
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.records import JobPhase, Secret, Usage
from fairlead.control.service.submission import require_job_room
from fairlead.control.store import generations, jobs, ledger, pipelines, secrets, tenants
from fairlead.errors import Forbidden, InvalidSpec, NotFound, Refused
from fairlead.pipelines.graph import parse_pipeline
from fairlead.scheduling.state import Reason
from fairlead.specs import parse_job

from . import made
from .stores import a_job, submit
from .verbs import Asked

COMMAND: dict[str, Any] = {"name": "say", "command": ["echo"]}


def handed_in(asked: Asked, document: dict[str, Any], who: Any = None, key: str | None = None) -> Any:
    return asked.ask(asked.platform.submit(who or asked.ann, parse_job(document), key))


# ---------------------------------------------------------------- jobs


def test_a_job_is_stored_audited_and_told_once_however_often_it_is_handed_in(asked: Asked) -> None:
    view, new = handed_in(asked, {**COMMAND, "labels": {"team": "x"}, "priority": 3}, key="k")
    assert new and (view.name, view.tenant, view.state, view.priority) == ("say", "vision", "queued", 3)
    assert view.labels == {"team": "x"} and view.submitted_by == asked.ann.id and view.submitted_s == asked.clock()
    again, new = handed_in(asked, {**COMMAND, "labels": {"team": "x"}, "priority": 3}, key="k")
    assert not new and again.id == view.id
    assert [entry.target for entry in asked.audited("job.submit")] == [view.id]
    (event,) = asked.events("job-submitted")
    assert (event.job, event.tenant, event.facts) == (view.id, "vision", {"by": asked.ann.id})
    stored = asked.db.read(jobs.get, view.id)
    assert stored is not None and not stored.training and stored.facts["application"] == "vision/say"
    assert stored.since_s == asked.clock() and "again" not in stored.facts
    spec = asked.db.read(jobs.stored_spec, view.id)
    assert spec["command"] == ["echo"] and spec["tenant"] == "vision"


def test_who_may_hand_in_and_for_whom(asked: Asked) -> None:
    with pytest.raises(Forbidden):
        handed_in(asked, COMMAND, asked.guest)
    with pytest.raises(NotFound):
        handed_in(asked, {**COMMAND, "tenant": "text"})
    with pytest.raises(InvalidSpec):
        handed_in(asked, COMMAND, asked.admin)
    assert handed_in(asked, {**COMMAND, "tenant": "text"}, asked.admin)[0].tenant == "text"


def test_what_can_never_run_is_refused_at_once(asked: Asked, tmp_path: Path) -> None:
    code = "sha256:" + "0" * 64
    asked.backend.capabilities = replace(asked.backend.capabilities, one_machine=True)
    past = datetime.fromtimestamp(asked.clock(), UTC)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"workers": {"min": 9, "max": 9}}, Refused, "workers"), ({"resources": {"cpu": 9}}, Refused, "resources"),
        ({"secrets": ["KEY"]}, InvalidSpec, "secrets"), ({"venv": str(tmp_path)}, InvalidSpec, "venv"),
        ({"command": None, "run": "train.py:training"}, InvalidSpec, "code"),
        ({"command": None, "run": "train.py:training", "code": code}, NotFound, "code"),
        ({"sla": {"deadline": past.isoformat()}}, InvalidSpec, "sla.deadline"),
        ({"data": ["nothing"]}, NotFound, "data"),
    ]  # fmt: skip
    for change, error, field in wrong:
        document = {name: value for name, value in {**COMMAND, **change}.items() if value is not None}
        with pytest.raises(error) as refused:
            handed_in(asked, document)
        assert str(refused.value.field).startswith(field)  # type: ignore[attr-defined]
    assert asked.ask(asked.platform.jobs(asked.ann, None, None, None, 10, None)).items == []
    (tmp_path / "bin").mkdir()
    for name in ("pyvenv.cfg", "bin/python"):
        (tmp_path / name).touch()
    later = (past + timedelta(hours=1)).isoformat()
    assert handed_in(asked, {**COMMAND, "venv": str(tmp_path), "sla": {"deadline": later}})[1]
    asked.db.write(secrets.put, Secret("vision", "KEY", b"sealed", 1.0, "u"))
    assert handed_in(asked, {**COMMAND, "secrets": ["KEY"]})[1]


def test_a_tenant_has_only_so_many_jobs_that_run_or_wait(asked: Asked) -> None:
    asked.ask(asked.platform.update_tenant(asked.admin, "vision", {"policy": {"jobs": 2}}))
    for name in ("a", "b"):
        submit(asked.db, a_job(name, id=name))
    tenant = asked.db.read(tenants.get, "vision")
    assert tenant is not None
    asked.db.read(require_job_room, tenant)
    with pytest.raises(Refused, match="has 2 running and waiting jobs"):
        asked.db.read(require_job_room, tenant, more=1)
    with pytest.raises(Refused, match="--jobs 4"):
        try:
            handed_in(asked, COMMAND)
        except Refused as error:
            raise Refused(str(error.fix)) from None
    assert not asked.ask(asked.platform.dry_run(asked.guest, parse_job(COMMAND))).admitted
    asked.db.write(jobs.update, "a", phase=JobPhase.SUCCEEDED, finished_s=1.0)
    assert handed_in(asked, COMMAND)[1]


def test_a_dry_run_says_what_would_be_and_stores_nothing(asked: Asked) -> None:
    told = asked.ask(asked.platform.dry_run(asked.guest, parse_job({**COMMAND, "workers": {"min": 9, "max": 9}})))
    assert not told.admitted and told.reason.code == "impossible" and told.reason.text.startswith("workers")
    assert asked.ask(asked.platform.dry_run(asked.guest, parse_job(COMMAND))).reason.text
    with pytest.raises(InvalidSpec, match="is past"):
        past = datetime.fromtimestamp(asked.clock() - 1, UTC).isoformat()
        asked.ask(asked.platform.dry_run(asked.guest, parse_job({**COMMAND, "sla": {"deadline": past}})))
    with pytest.raises(NotFound):
        asked.ask(asked.platform.dry_run(asked.guest, parse_job({**COMMAND, "tenant": "text"})))
    assert asked.ask(asked.platform.jobs(asked.ann, None, None, None, 10, None)).items == []
    assert not asked.audited("job.submit")


def test_a_job_that_waits_is_cancelled_at_once_and_one_that_runs_when_its_workers_have_ended(
    asked: Asked,
) -> None:
    for name, phase in (("waits", JobPhase.QUEUED), ("runs", JobPhase.RUNNING)):
        submit(asked.db, a_job(name, id=name, phase=phase), team="x")
    view = asked.ask(asked.platform.cancel(asked.ann, "waits"))
    assert (view.state, view.finished_s, view.labels) == ("cancelled", asked.clock(), {"team": "x"})
    assert asked.ask(asked.platform.cancel(asked.ann, "runs")).state == "stopping"
    stopping = asked.db.read(jobs.get, "runs")
    assert (
        stopping is not None and stopping.outcome == "cancelled" and stopping.message == f"cancelled by {asked.ann.id}"
    )
    assert [entry.target for entry in asked.audited("job.cancel")] == ["waits", "runs"]
    assert {event.job for event in asked.events("job-cancelled")} == {"waits", "runs"}
    with pytest.raises(Refused, match="waits is cancelled already"):
        asked.ask(asked.platform.cancel(asked.ann, "waits"))
    for who, error in ((asked.guest, Forbidden), (asked.eve, NotFound)):
        with pytest.raises(error):
            asked.ask(asked.platform.cancel(who, "runs"))


# ---------------------------------------------------------------- pipelines

FLOW: dict[str, Any] = {"name": "flow", "stages": {
    "load": {"command": ["true"]}, "train": {"command": ["true"], "after": ["load"]},
    "tell": {"command": ["true"], "after": ["train"]},
}}  # fmt: skip


def run_flow(asked: Asked, who: Any = None, key: str | None = None, **change: Any) -> Any:
    return asked.ask(asked.platform.run_pipeline(who or asked.ann, parse_pipeline({**FLOW, **change}), key))


def test_a_pipeline_is_stored_audited_and_told_once_however_often_it_is_run(asked: Asked) -> None:
    view, new = run_flow(asked, key="k", labels={"team": "x"})
    assert new and (view.name, view.tenant, view.state, view.labels) == ("flow", "vision", "running", {"team": "x"})
    upstream = {stage.name: stage.upstream for stage in view.stages}
    assert upstream == {"load": [], "train": ["load"], "tell": ["train"]}
    assert {stage.state for stage in view.stages} == {"waiting"} and view.counts == {"waiting": 3}
    again, new = run_flow(asked, key="k", labels={"team": "x"})
    assert not new and again.id == view.id
    assert [entry.target for entry in asked.audited("pipeline.run")] == [view.id]
    (event,) = asked.events("pipeline-submitted")
    assert event.text == f"{view.id} was submitted: 3 stages" and event.facts["pipeline"] == view.id
    for key, error in (("k" * 255, None), ("k" * 256, InvalidSpec)):
        if error is None:
            assert run_flow(asked, key=key)[1]
        else:
            with pytest.raises(error, match="has 256 characters"):
                run_flow(asked, key=key)


def test_a_pipeline_of_which_a_stage_can_never_run_is_refused_by_that_stage(asked: Asked) -> None:
    stages = {**FLOW["stages"], "big": {"command": ["true"], "workers": {"min": 9, "max": 9}}}
    with pytest.raises(Refused) as refused:
        run_flow(asked, stages=stages)
    assert str(refused.value.field).startswith("stages.big.workers")
    with pytest.raises(Forbidden):
        run_flow(asked, asked.guest)
    assert asked.ask(asked.platform.pipelines(asked.ann, None, 10)).items == []


def test_a_pipelines_name_means_its_newest_run_and_each_tenant_sees_its_own(asked: Asked) -> None:
    ids = []
    for _ in range(6):
        ids.append(run_flow(asked)[0].id)
        asked.clock.advance(1)
    other = run_flow(asked, asked.eve)[0].id
    listed = [view.id for view in asked.ask(asked.platform.pipelines(asked.guest, None, 4)).items]
    assert listed == ids[:-5:-1]
    assert asked.ask(asked.platform.pipeline(asked.guest, "flow")).id == ids[-1], "not the largest id"
    assert asked.ask(asked.platform.pipeline(asked.eve, "flow")).id == other
    assert asked.ask(asked.platform.pipeline(asked.guest, ids[2])).id == ids[2]
    assert asked.ask(asked.platform.pipelines(asked.admin, "text", 10)).items[0].id == other
    for who, tenant in ((asked.guest, "text"), (asked.admin, "nobody")):
        with pytest.raises(NotFound):
            asked.ask(asked.platform.pipelines(who, tenant, 10))
    with pytest.raises(NotFound):
        asked.ask(asked.platform.pipeline(asked.guest, other))


def test_a_pipeline_that_is_cancelled_says_by_whom_and_one_that_has_ended_is_not(asked: Asked) -> None:
    id = run_flow(asked)[0].id
    with pytest.raises(Forbidden):
        asked.ask(asked.platform.cancel_pipeline(asked.guest, id))
    view = asked.ask(asked.platform.cancel_pipeline(asked.ann, id))
    assert view.message == f"cancelled by {asked.ann.id}"
    stored = asked.db.read(pipelines.get, id)
    assert stored is not None and stored.cancelled_by == asked.ann.id
    assert [entry.target for entry in asked.audited("pipeline.cancel")] == [id]
    assert asked.events("pipeline-cancelling")[0].facts == {"pipeline": id}
    asked.db.write(pipelines.update, id, finished_s=1.0, phase="cancelled")
    with pytest.raises(Refused, match="is cancelled already"):
        asked.ask(asked.platform.cancel_pipeline(asked.ann, id))


# ---------------------------------------------------------------- what moves


def test_a_beat_tells_of_what_holds_devices_and_is_read_once_for_all_who_listen(
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, tenant in (("a", "vision"), ("t", "text")):
        submit(asked.db, a_job(name, tenant, id=name, phase=JobPhase.RUNNING, step=7, loss=0.5))
    submit(asked.db, a_job("q", id="q"))
    asked.controller.gang_registry.workers_of("a")["w0"] = WorkerFact("node-0", "running", device=1)
    asked.controller.gang_registry.workers_of("t")["w0"] = WorkerFact("node-1", "running", device=0)
    every, mine = asked.ask(asked.platform.beat(asked.admin)), asked.ask(asked.platform.beat(asked.guest))
    assert set(every["jobs"]) == {"a", "t"} and set(mine["jobs"]) == {"a"}
    told = mine["jobs"]["a"]
    assert (told["step"], told["loss"], told["state"], told["workers"]) == (7, 0.5, "running", 1)
    assert mine["nodes"]["node-0"]["jobs"] == ["a"] and mine["nodes"]["node-1"]["jobs"] == []
    assert mine["nodes"]["node-1"]["devices_used"] == 1 and every["nodes"]["node-1"]["jobs"] == ["t"]
    assert "cpu" not in mine["nodes"]["node-0"]
    asked.clock.advance(0.7)
    assert asked.ask(asked.platform.beat(asked.guest)) is mine
    asked.clock.advance(0.2)
    assert asked.ask(asked.platform.beat(asked.guest)) is not mine


def test_shares_over_time_count_what_is_in_the_ledger_and_what_runs_now(asked: Asked) -> None:
    now_s = asked.clock()
    asked.db.write(ledger.append, [Usage("j", "text", "u", 1, "n0", "cpu", 2, 1.0, now_s - 100, now_s - 50)])
    submit(asked.db, a_job("a", id="a", phase=JobPhase.RUNNING))
    running = made.generation(("w0", "node-0"), ("w1", "node-1"), ("w2", "node-1"), job="a", number=1,
                              running_s=now_s - 40, metered_s=now_s - 20)  # fmt: skip
    asked.db.write(generations.insert, running)
    told = asked.ask(asked.platform.shares(asked.admin, 100.0, 10)).model_dump()
    lines = {line["tenant"]: line for line in told["tenants"]}
    assert set(lines) == {"vision", "text"}
    of = {
        name: next(value for key, value in line.items() if key in ("devices", "held")) for name, line in lines.items()
    }
    assert of["vision"][-1] == 3 and of["vision"][-4] == 0 and of["text"][0] == 2 and of["text"][-1] == 0
    assert [
        line["tenant"] for line in asked.ask(asked.platform.shares(asked.guest, 100.0, 10)).model_dump()["tenants"]
    ] == ["vision"]


# ---------------------------------------------------------------- as people read them


@pytest.mark.parametrize(
    ("changes", "now_s", "met"),
    [
        ({}, 5.0, None), ({"finish_by_s": 10.0}, 10.0, None), ({"finish_by_s": 10.0}, 10.1, False),
        ({"finish_by_s": 10.0, "phase": JobPhase.SUCCEEDED, "finished_s": 10.0}, 99.0, True),
        ({"finish_by_s": 10.0, "phase": JobPhase.SUCCEEDED, "finished_s": 10.1}, 99.0, False),
        ({"finish_by_s": 10.0, "phase": JobPhase.FAILED, "finished_s": 5.0}, 6.0, False),
        ({"finish_by_s": 10.0, "phase": JobPhase.CANCELLED}, 99.0, None), ({"start_by_s": 10.0}, 10.0, None),
        ({"start_by_s": 10.0}, 10.1, False), ({"start_by_s": 10.0, "started_s": 10.0}, 99.0, True),
        ({"start_by_s": 10.0, "started_s": 10.1}, 99.0, False),
    ],
)  # fmt: skip
def test_a_promise_is_kept_broken_or_open(changes: dict[str, Any], now_s: float, met: bool | None) -> None:
    assert sla_met(a_job(**changes), now_s) is met


@pytest.mark.parametrize(
    ("changes", "held", "waking", "word"),
    [
        ({}, True, False, "ready"), ({"asleep": True}, False, False, "asleep"),
        ({"asleep": True}, False, True, "waking"),
        ({"asleep": True, "state": NodeState.CORDONED}, False, True, "cordoned"),
        ({"state": NodeState.DRAINING}, True, False, "draining"),
        ({"state": NodeState.DRAINING}, False, False, "drained"),
        ({"outdated": True}, True, False, "outdated"),
        ({"outdated": True, "state": NodeState.LOST}, True, False, "lost"),
    ],
)  # fmt: skip
def test_a_node_is_at_something_that_a_word_says(changes: dict[str, Any], held: bool, waking: bool, word: str) -> None:
    assert node_state(Node("n", {"cpu": 1.0}, **changes), held=held, waking=waking) == word


def test_of_a_node_a_tenant_is_told_its_own_jobs_and_how_many_devices_are_used() -> None:
    nodes = {
        name: Node(name, {"cpu": 4.0, "memory": 8e9, DEVICE: 4.0}, labels=frozenset({"z", "a"}))
        for name in ("n1", "n0")
    }
    facts = {
        "mine": {"w1": WorkerFact("n0", "running", device=2), "w0": WorkerFact("n0", "running", device=0)},
        "theirs": {"w0": WorkerFact("n0", "running", device=1)},
    }
    told = wire.Telemetry(0.5, 100, temperature_c=60.0, power_w=30.0, grid_trouble="slow")
    more = {"n0": {"isolation": "sandbox", "warm": True}}
    tenant_of = {"mine": "vision", "theirs": "text"}
    first, second = node_views(nodes, facts, {"n0": told}, more, tenant_of, "vision")
    assert (first.name, first.devices, first.devices_used, first.jobs) == ("n0", 4, 3, ["mine"])
    assert [(slot.device, slot.job, slot.worker) for slot in first.slots] == [
        (0, "mine", "w0"), (1, None, None), (2, "mine", "w1"),
    ]  # fmt: skip
    assert (first.isolation, first.warm, first.cpu_fraction) == ("sandbox", True, 0.5)
    assert (first.memory_used_bytes, first.temperature_c, first.power_w, first.grid_trouble) == (
        100,
        60.0,
        30.0,
        "slow",
    )
    assert (second.devices_used, second.isolation, second.warm, second.cpu_fraction) == (0, "none", False, None)
    assert (second.memory_bytes, second.places) == (8_000_000_000, ["a", "z"])
    every = node_views(nodes, facts, {}, {}, tenant_of, None)[0]
    assert [slot.tenant for slot in every.slots] == ["vision", "text", "vision"] and every.jobs == ["mine", "theirs"]


def test_a_job_is_shown_with_what_it_has_and_why() -> None:
    old = made.generation(("w0", "n0"), number=1, ended_s=None)
    new = made.generation(("w1", "n1"), ("w0", "n0"), number=2, running_s=None, reason_code="grown", reason="it grew")
    job = a_job(recoveries=2, recovery_s=3.0, phase=JobPhase.RUNNING, finish_by_s=9.0, result={"metrics": {"loss": 1}})
    view = job_view(job, {"a": "b"}, [old, new], None, 5.0, None)
    assert (view.workers, view.nodes, view.recovery_s, view.sla) == (1, ["n0"], 1.5, {"finish_by_s": 9.0})
    assert view.reason is not None and (view.reason.code, view.reason.text) == ("grown", "it grew")
    assert view.metrics == {"loss": 1} and view.expected_start_s is None
    alone = job_view(a_job(recoveries=0), {}, [new], None, 5.0, None)
    assert (alone.workers, alone.nodes, alone.recovery_s) == (2, ["n1", "n0"], None)
    assert alone.reason is not None and alone.reason.code == "undecided"
    for changes, code, text in (
        ({"phase": JobPhase.STOPPING, "outcome": "preempted"}, "preempted", "its workers are being ended (preempted)"),
        ({"phase": JobPhase.STOPPING}, "stopping", "its workers are being ended (None)"),
        ({"phase": JobPhase.FAILED, "message": "no memory"}, "failed", "no memory"),
        ({"phase": JobPhase.SUCCEEDED}, "succeeded", "it finished"),
    ):  # fmt: skip
        reason = job_view(a_job(**changes), {}, [new], None, 5.0, None).reason
        assert reason is not None and (reason.code, reason.text) == (code, text)
    assert plan_view(None) is None and plan_view(new) is None


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("elastic", [True, False])
def test_only_a_training_can_change_its_size(training: bool, elastic: bool) -> None:
    seen = job_state(a_job(training=training, elastic=elastic), (), {}, cooling=False)
    assert seen.elastic is (training and elastic)


# ---------------------------------------------------------------- where data lies

RESIDENT = {
    "n0": {"vision/dataset/a": 100, "vision/dataset/b": 10, "text/dataset/a": 500}, "n1": {"vision/dataset/a": 55},
    "n2": {"vision/dataset/a": 54}, "n3": {"vision/dataset/a": 0},
}  # fmt: skip


def test_nodes_that_hold_half_of_what_the_fullest_does_count_as_holding_the_data() -> None:
    labels = ["dataset/a", "dataset/b"]
    assert bytes_held(RESIDENT, "vision", labels) == {"n0": 110, "n1": 55, "n2": 54}
    assert nodes_holding(RESIDENT, "vision", labels) == {"n0": 110, "n1": 55}
    assert nodes_holding(RESIDENT, "nobody", labels) == {}


def test_a_job_would_rather_run_where_its_data_lies_and_says_so() -> None:
    job = job_state(a_job(facts={"data": ["a@v1", "b@v2"]}), (), {}, cooling=False)
    other = job_state(a_job(), (), {}, cooling=False)
    labels = {("vision", "a@v1"): ["dataset/a"], ("vision", "b@v2"): ["dataset/b"], ("text", "a@v1"): ["dataset/x"]}
    moved, same = prefer_nodes_with_data([job, other], RESIDENT, labels)
    assert set(moved.near) == {"n0", "n1"} and same == other
    assert moved.facts["data_bytes"] == {"n0": 110, "n1": 55}
    assert (
        prefer_nodes_with_data([job], {"n0": {}}, labels) == (job,)
        and prefer_nodes_with_data([job], RESIDENT, {})[0] == job
    )
    reason = Reason("started", "starts")
    assert explain_data_locality(reason, job, ["n0"]) is reason
    for seats, text, here in (
        (["n0", "n9"], "starts; n0 holds its data in memory (a and b, ", ["n0"]),
        (["n1", "n0", "n0"], "starts; n0, n1 hold its data in memory (a and b, ", ["n0", "n1"]),
        (["n9"], "is brought there from n0, n1", []),
    ):  # fmt: skip
        said = explain_data_locality(reason, moved, seats)
        assert text in said.text and said.facts["data_here"] == here and said.facts["data"] == {"n0": 110, "n1": 55}
