"""Pipelines on a live platform: every kind of stage, what is not run again, what fails and whom that concerns."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.errors import InvalidSpec, Refused
from fairlead.sdk.pipelines import PipelineRun
from tests.chaos.crashable import Crashable, kill
from tests.pipelines.conftest import PROGRAMS, ended
from tests.waiting import until

pytestmark = pytest.mark.timeout(400)
Run = Callable[..., PipelineRun]


def test_functions_estimators_and_trainings_are_stages_alike(platform: Crashable, run: Run) -> None:
    done = ended(platform, run("every_kind").id)
    assert done.state == "succeeded", done.view
    kinds = {name: stage.kind for name, stage in done.stages.items()}
    assert kinds == {
        "load": "function", "split": "function", "regression": "estimator", "regression-score": "estimator",
        "train": "training", "judge": "function",
    }  # fmt: skip
    value = done.value("judge")
    assert value["parameters"] == 10, "the trained model was passed on"
    assert value["score"] > 0.5
    assert not value["copied"], "arrays are mapped, not copied"
    assert platform.view(done.stages["train"].job or "").metrics["loss"] > 0


def test_what_has_not_changed_is_not_run_again_and_says_so(platform: Crashable, run: Run) -> None:
    first = ended(platform, run("chain").id)
    again = ended(platform, run("chain").id)
    assert {stage.state for stage in again.stages.values()} == {"cached"}
    assert {stage.reused for stage in again.stages.values()} == {first.id}
    assert again.value("last") == first.value("last")
    other = ended(platform, run("chain", rows=120).id)
    assert {stage.state for stage in other.stages.values()} == {"succeeded"}


def test_code_that_changed_is_run_again_and_only_that_and_what_follows(platform: Crashable, tmp_path: Path) -> None:
    file = tmp_path / "flow.py"
    shutil.copy(PROGRAMS / "flow.py", file)

    def states() -> dict[str, str]:
        made = platform.client.run_pipeline(f"{file}:chain", folder=tmp_path, tenant="alpha", rows=140)
        return {name: stage.state for name, stage in ended(platform, made.id).stages.items()}

    states()
    text = file.read_text()
    commented = text.replace("% 7", "% 7  # a comment")
    file.write_text(commented.replace("@stage(outputs=2)", "@stage(outputs=2, retries=1)"))
    assert set(states().values()) == {"cached"}, "comments and settings do not count"
    file.write_text(text.replace("cut = int(", "cut = 1 + int("))
    assert states() == {"load": "cached", "split": "succeeded", "last": "succeeded"}


def test_a_result_that_is_gone_is_made_anew_for_whoever_needs_it(platform: Crashable, run: Run) -> None:
    """After a restart of the nodes nothing is in memory any more, but the store remembers what once was."""
    first = ended(platform, run("chain", rows=160).id)
    assert first.state == "succeeded"
    for node, pid in platform.node_managers().items():
        lose(platform, node, pid)
    made = platform.call(
        lambda client: client.run_pipeline(
            {"name": "needs", "stages": {
                "load": {"run": "flow.py:load", "args": {"rows": 160}},
                "split": {"run": "flow.py:split", "args": {"data": "$load", "part": 0.5}},
                "mine": {"run": "flow.py:judge", "args": {"trained": {"state": {}}, "score": 2.0, "data": "$split[0]"}},
            }}, folder=PROGRAMS, tenant="alpha",
        )
    )  # fmt: skip
    done = ended(platform, made.id)
    assert done.state == "succeeded", done.view
    assert done.stages["split"].state == "succeeded", "it was known, and had to run all the same"


def lose(platform: Crashable, node: str, pid: int) -> None:
    """Kill a node manager, and wait for the next one to be there with its devices."""
    kill(pid)
    until(lambda: platform.node_managers().get(node, pid) != pid, 120, f"{node} comes back")
    until(lambda: all(n.state == "ready" for n in platform.call(lambda c: c.nodes())), 120, "all nodes are ready")


def test_a_failed_stage_is_tried_again_then_fails_its_descendants_while_the_others_finish(
    platform: Crashable, run: Run
) -> None:
    done = ended(platform, run("half_broken").id)
    states = {name: stage.state for name, stage in done.stages.items()}
    assert states == {"flaky": "succeeded", "broken": "failed", "after-broken": "skipped", "after-good": "succeeded",
                      "unpicklable": "failed"}  # fmt: skip
    stages = done.stages
    assert stages["flaky"].attempts == 2
    assert "ValueError: no good (flow.py:" in (stages["broken"].message or "")
    assert stages["after-broken"].message == "skipped: upstream broken failed"
    assert stages["after-good"].value == 2
    assert "unpicklable: returns a lock that cannot be passed on" in (stages["unpicklable"].message or "")
    assert done.state == "failed" and "broken failed (and 1 more)" in (done.view.message or "")


def test_a_cancelled_pipeline_ends_its_stages(platform: Crashable, run: Run) -> None:
    made = run("slow")
    until(lambda: platform.client.pipeline(made.id).stages["one"].state == "running", 120, "it runs")
    platform.client.cancel_pipeline(made.id)
    done = ended(platform, made.id)
    assert done.state == "cancelled"
    assert {stage.state for stage in done.stages.values()} == {"cancelled"}
    assert platform.state(done.stages["one"].job or "") in ("stopping", "cancelled")
    with pytest.raises(Refused, match="cancelled already"):
        platform.client.cancel_pipeline(made.id)


def test_commands_and_yaml_and_the_same_key_twice(platform: Crashable, tmp_path: Path) -> None:
    shutil.copy(PROGRAMS / "flow.py", tmp_path)
    file = tmp_path / "words.yaml"
    file.write_text("""
name: words
stages:
  number: {run: flow.py:plus, args: {value: 40, other: 2}}
  tell: {command: [sh, -c, "test $1 = 42 && echo it is $$1", "-", $number]}
""")
    first = platform.client.run_pipeline(file, tenant="alpha", key="words-1")
    assert platform.client.run_pipeline(file, tenant="alpha", key="words-1").id == first.id
    done = ended(platform, first.id)
    assert done.state == "succeeded", done.view
    job = platform.client.detail(done.stages["tell"].job or "")
    assert job.spec["command"][-1] == "42"
    assert (job.labels["pipeline"], job.labels["stage"]) == (first.id, "tell")
    assert json.loads(done.view.model_dump_json())["counts"] == {"succeeded": 2}


def test_a_stage_that_can_never_run_here_is_refused_with_its_name(platform: Crashable) -> None:
    wanted = {"name": "large", "stages": {"fit": {"command": ["true"], "resources": {"cpu": 4096}}}}
    with pytest.raises(Refused) as found:
        platform.client.run_pipeline(wanted, tenant="alpha")
    assert (found.value.field or "").startswith("stages.fit.resources")
    assert found.value.fix
    with pytest.raises(InvalidSpec, match=r"stages\.fit\.args\.nothing: unknown argument"):
        platform.client.run_pipeline(
            {"name": "wrong", "stages": {"fit": {"run": "flow.py:plus", "args": {"nothing": 1}}}}, folder=PROGRAMS,
            tenant="alpha",
        )  # fmt: skip


def test_a_figure_that_is_no_number_hides_nobodys_answers(platform: Crashable, run: Run) -> None:
    done = ended(platform, run("no_numbers").id)
    assert done.state == "succeeded", done.view
    job = done.stages["odd"].job or ""
    assert platform.view(job).metrics == {"good": 1.0}
    with contextlib.closing(sqlite3.connect(platform.home / "fairlead.db", timeout=30.0)) as store, store:
        stored = json.dumps({"metrics": {"auc": None, "good": 1.0}, "artifacts": []})  # as it once was written
        store.execute("update jobs set result = ? where id = ?", (stored, job))
    assert {each.id: each.view.metrics for each in platform.client.jobs()}[job] == {"auc": None, "good": 1.0}
    assert platform.client.result(job).metrics["auc"] is None
    assert job in {each.job for each in platform.client.report().jobs}
