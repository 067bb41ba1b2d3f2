"""What becomes of a pipeline's stages: started in turn, not run again, run anew, skipped and stopped."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.control.pipelines import driver as control_pipelines
from fairlead.control.pipelines.driver import RECHECK_S, Pipelines
from fairlead.control.pipelines.steps import LARGE_BYTES
from fairlead.control.records import Job, JobPhase
from fairlead.control.service import pipelines as pipelining
from fairlead.control.store import generations, jobs, pipelines
from fairlead.errors import Refused
from fairlead.pipelines.graph import parse_pipeline
from fairlead.pipelines.next_steps import StagePhase

from . import made
from .stores import run
from .verbs import Asked

FLOW: dict[str, Any] = {
    "load": {"command": ["load"]}, "train": {"command": ["train", "$load[rate]", "$load"], "after": ["load"]},
    "tell": {"command": ["tell"], "after": ["train"]}, "other": {"command": ["other"], "cache": False},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _without_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried here is not how long a round waits."""
    monkeypatch.setattr(control_pipelines, "MAX_PASS_S", 1e9)


class Flow:
    """One pipeline on its way, and the jobs of its stages as workers would end them."""

    def __init__(self, asked: Asked, stages: dict[str, Any] = FLOW) -> None:
        self.asked = asked
        self.id = self.again(stages)
        self.pipelines = Pipelines(asked.db.store, asked.clock)

    def again(self, stages: dict[str, Any] = FLOW) -> str:
        spec = parse_pipeline({"name": "flow", "stages": stages})
        self.id = self.asked.ask(self.asked.platform.run_pipeline(self.asked.ann, spec, None))[0].id
        return self.id

    def step(self) -> set[str] | None:
        self.asked.clock.advance(1)
        return run(self.pipelines.advance())

    def phases(self) -> dict[str, str]:
        return {name: str(stage.phase.value) for name, stage in self.stages().items()}

    def stages(self) -> dict[str, Any]:
        return self.asked.db.read(pipelines.stages_of, [self.id])[self.id]

    def job(self, stage: str) -> Job:
        found = self.asked.db.read(jobs.get, self.stages()[stage].job or "")
        assert found is not None
        return found

    def end(self, stage: str, phase: JobPhase = JobPhase.SUCCEEDED, **result: Any) -> None:
        done = {"value": {"kind": "plain", "plain": result, "shown": str(result), "bytes": 9}} if result else {}
        changes = {"phase": phase, "finished_s": self.asked.clock(), "result": done, "message": "as it ended"}
        self.asked.db.write(jobs.update, self.job(stage).id, **changes)

    def record(self) -> Any:
        return self.asked.db.read(pipelines.get, self.id)

    def told(self, kind: str) -> list[str]:
        return [event.text for event in self.asked.events(kind)]


def test_stages_start_in_turn_with_what_those_before_have_given(asked: Asked) -> None:
    flow = Flow(asked)
    assert flow.step() == {flow.job("load").id, flow.job("other").id}
    assert flow.phases() == {"load": "active", "train": "waiting", "tell": "waiting", "other": "active"}
    assert flow.step() is None, "nothing has happened"
    submitted = [event for event in asked.events("job-submitted") if event.facts.get("stage") == "load"]
    assert submitted[0].facts == {"by": asked.ann.id, "pipeline": flow.id, "stage": "load"}
    stage = flow.stages()["load"]
    assert (stage.started_s, stage.finished_s, stage.message) == (asked.clock() - 1, None, None)
    job = flow.job("load")
    assert (job.tenant, job.submitted_by, job.facts["stage"]) == (
        "vision", asked.ann.id, {"pipeline": flow.id, "name": "load", "trains": False},
    )  # fmt: skip
    assert job.facts["behind"] == 2 and flow.job("other").facts["behind"] == 0
    flow.end("load", rate=0.5)
    assert len(flow.step() or ()) == 1
    assert flow.phases()["load"] == "succeeded" and flow.stages()["load"].finished_s == asked.clock()
    assert asked.db.read(jobs.stored_spec, flow.job("train").id)["command"] == ["train", "0.5", "{'rate': 0.5}"]
    for name in ("other", "train"):
        flow.end(name)
    flow.step()
    flow.end("tell")
    flow.step()
    record = flow.record()
    assert (record.phase, record.finished_s, set(flow.phases().values())) == ("succeeded", asked.clock(), {"succeeded"})
    assert flow.told("pipeline-succeeded") == [f"{flow.id} succeeded"]
    assert run(flow.pipelines.running()) == [] and flow.step() is None


def test_what_was_done_before_is_not_run_again_unless_it_is_to_or_has_changed(asked: Asked) -> None:
    flow = Flow(asked)
    flow.step()
    first = flow.id
    for name in ("load", "other"):
        flow.end(name, rate=1)
    flow.step()
    flow.end("train", loss=2)
    flow.step()
    flow.again()
    flow.step()
    assert flow.phases() == {"load": "cached", "train": "cached", "tell": "active", "other": "active"}
    stage = flow.stages()["train"]
    assert (stage.reused, stage.result["plain"], stage.finished_s) == (first, {"loss": 2}, asked.clock())
    assert stage.message == f"not run again: same code and inputs as in {first}"
    assert flow.told("stage-cached")[0].endswith("load is not run again")
    flow.again({**FLOW, "train": {"command": ["train", "harder"], "after": ["load"]}})
    flow.step()
    assert flow.phases() == {"load": "cached", "train": "active", "tell": "waiting", "other": "active"}
    assert asked.db.read(pipelines.reusable_stages, "text", [flow.stages()["load"].fingerprint]) == {}


def test_a_failure_skips_what_follows_from_it_and_ends_the_pipeline(asked: Asked) -> None:
    flow = Flow(asked)
    flow.step()
    flow.end("load", JobPhase.FAILED)
    flow.step()
    assert flow.phases() == {"load": "failed", "train": "skipped", "tell": "skipped", "other": "active"}
    stages = flow.stages()
    assert stages["load"].message == "as it ended" and stages["train"].message.startswith("skipped: ")
    assert stages["tell"].message.count("skipped") >= 1 and not stages["tell"].message.startswith("skipped: skipped")
    assert flow.record().finished_s is None
    flow.end("other")
    flow.step()
    assert flow.record().phase == "failed" and "load" in flow.record().message
    assert not asked.db.read(pipelines.reusable_stages, "vision", [stages["load"].fingerprint])


def test_a_word_of_a_command_that_was_not_given_fails_its_stage_with_a_fix(asked: Asked) -> None:
    flow = Flow(asked)
    flow.step()
    flow.end("load", other=1)
    flow.step()
    message = flow.stages()["train"].message
    assert flow.phases()["train"] == "failed" and "there is no" in message and "fix: look at what it returns" in message


def test_what_was_given_and_is_gone_is_made_anew_for_who_needs_it(asked: Asked) -> None:
    flow = Flow(asked)
    flow.step()
    flow.end("load", rate=1)
    flow.step()
    first = flow.stages()["load"]
    gone = {"phase": JobPhase.FAILED, "finished_s": 1.0, "result": {"missing": ["load"]}, "message": "gone"}
    asked.db.write(jobs.update, flow.job("train").id, **gone)
    flow.step()
    assert flow.phases()["load"] == "active" and flow.phases()["train"] == "waiting"
    stage = flow.stages()["load"]
    assert (stage.rebuilds, stage.fresh, stage.job != first.job) == (first.rebuilds + 1, True, True)
    assert flow.stages()["train"].job is None
    (text,) = flow.told("stage-rebuilt")
    assert text == f"{flow.id}: load runs again for train: its result is no longer in memory"
    assert asked.db.read(pipelines.reusable_stages, "vision", [stage.fingerprint]) == {}
    flow.end("load", rate=2)
    flow.step()
    assert flow.phases()["train"] == "active" and not flow.stages()["load"].fresh


def test_a_pipeline_that_is_cancelled_stops_what_runs_and_skips_the_rest(asked: Asked) -> None:
    flow = Flow(asked)
    flow.step()
    running = flow.job("load").id
    asked.db.write(jobs.update, running, phase=JobPhase.RUNNING)
    asked.ask(asked.platform.cancel_pipeline(asked.ann, flow.id))
    flow.step()
    assert flow.job("load").phase is JobPhase.STOPPING and flow.job("other").phase is JobPhase.CANCELLED
    asked.db.write(jobs.update, running, phase=JobPhase.CANCELLED, finished_s=asked.clock())
    flow.step()
    assert (flow.record().phase, flow.record().cancelled_by) == ("cancelled", asked.ann.id)
    assert set(flow.phases().values()) <= {"cancelled", "skipped"}


@pytest.mark.parametrize(("size", "near"), [(LARGE_BYTES, ["node-1"]), (LARGE_BYTES - 1, [])])
def test_a_stage_would_rather_run_where_most_of_what_it_takes_lies(size: int, near: list[str], asked: Asked) -> None:
    flow = Flow(asked)
    flow.step()
    asked.db.write(generations.insert, made.generation(("w0", "node-1"), job=flow.job("load").id, number=1))
    flow.end("load", rate=1)
    given = {"kind": "plain", "plain": {"rate": 1}, "shown": "x", "bytes": size}
    asked.db.write(jobs.update, flow.job("load").id, result={"value": given})
    flow.step()
    assert flow.job("train").facts.get("near", []) == near


def test_others_go_on_while_one_is_left_alone(asked: Asked) -> None:
    flow = Flow(asked)
    first = flow.id
    flow.again()
    assert run(flow.pipelines.advance([first])) == {stage.job for stage in flow.stages().values() if stage.job}
    left = asked.db.read(pipelines.stages_of, [first])[first]
    assert {stage.phase for stage in left.values()} == {StagePhase.WAITING}


def looked_at(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which pipelines are looked at from now on."""
    looked: list[str] = []
    look = Pipelines._plan_steps

    def counted(self: Pipelines, connection: Any, name: str) -> Any:
        looked.append(name)
        return look(self, connection, name)

    monkeypatch.setattr(Pipelines, "_plan_steps", counted)
    return looked


def test_only_pipelines_that_something_happened_to_are_looked_at(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Flow(asked, {"a": {"command": ["a"], "cache": False}, "b": {"command": ["b"], "after": ["a"]}})
    one = flow.id
    others = [flow.again({"x": {"command": ["x", str(n)]}}) for n in range(5)]
    flow.step()
    looked = looked_at(flow, monkeypatch)
    assert flow.step() is None and looked == []
    flow.id = one
    flow.end("a")
    flow.step()
    assert set(looked) == {one} and flow.phases() == {"a": "succeeded", "b": "active"}
    looked.clear()
    asked.ask(asked.platform.cancel_pipeline(asked.ann, others[0]))
    flow.step()
    assert set(looked) == {others[0]}
    looked.clear()
    fresh = flow.again({"y": {"command": ["y"]}})
    flow.step()
    assert set(looked) == {fresh}
    looked.clear()
    asked.clock.advance(RECHECK_S + 1)
    flow.step()
    assert len(looked) == 1, "one that nothing was heard of for long"


def test_a_result_stands_at_once_for_the_same_stage_of_a_pipeline_that_waits(asked: Asked) -> None:
    flow = Flow(asked, {"a": {"command": ["a"]}})
    one = flow.id
    flow.step()
    other = flow.again({"slow": {"command": ["s"]}, "b": {"command": ["b"], "after": ["slow"]}})
    flow.step()
    mark = asked.db.read(pipelines.stages_of, [other])[other]["b"].fingerprint
    asked.db.sql(f"update stages set fingerprint = '{mark}' where pipeline = '{one}'")
    flow.pipelines = Pipelines(asked.db.store, asked.clock)
    flow.step()
    assert flow.phases()["b"] == "waiting"
    flow.id = one
    flow.end("a")
    flow.step()
    flow.id = other
    flow.step()
    assert flow.phases()["b"] == "cached"


def test_a_stage_waits_with_a_reason_while_its_tenant_has_as_many_jobs_as_it_may(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked.db.sql("update tenants set policy = '{\"jobs\": 2}' where name = 'vision'")
    flow = Flow(asked, {name: {"command": [name], "cache": False} for name in ("a", "b", "c", "d")})
    flow.step()
    assert flow.phases() == {"a": "active", "b": "active", "c": "waiting", "d": "waiting"}
    assert "reached its limit of running and waiting jobs" in flow.stages()["c"].message
    looked = looked_at(flow, monkeypatch)
    assert flow.step() is None and looked == []
    flow.end("a")
    flow.step()
    assert flow.phases() == {"a": "succeeded", "b": "active", "c": "active", "d": "waiting"}
    assert flow.stages()["c"].message is None
    for name in ("b", "c"):
        flow.end(name)
        flow.step()
    flow.end("d")
    flow.step()
    assert flow.record().phase == "succeeded"


def test_a_tenant_has_no_more_running_pipelines_and_stages_than_it_may(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelining, "MAX_RUNNING", 2)
    flow = Flow(asked, {"a": {"command": ["a"]}})
    flow.again({"a": {"command": ["a"]}})
    with pytest.raises(Refused, match="2 running pipelines") as refused:
        flow.again({"a": {"command": ["a"]}})
    assert "cancel some" in (refused.value.fix or "")
    monkeypatch.setattr(pipelining, "MAX_RUNNING", 100)
    asked.db.sql("update tenants set policy = '{\"jobs\": 3}' where name = 'vision'")
    with pytest.raises(Refused, match="4 stages in all") as refused:
        flow.again({"a": {"command": ["a"]}, "b": {"command": ["b"]}})
    assert "--jobs 6" in (refused.value.fix or "")
    assert len(asked.db.read(pipelines.running_ids)) == 2
