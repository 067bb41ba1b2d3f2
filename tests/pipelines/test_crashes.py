"""The control plane is killed in the middle of a pipeline, at once and at its own failpoints: nothing is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fairlead.sdk.pipelines import PipelineRun
from tests.chaos.crashable import Crashable, kill
from tests.pipelines.conftest import PROGRAMS as FOLDER
from tests.pipelines.conftest import ended
from tests.waiting import until

pytestmark = pytest.mark.timeout(400)


def hurry(platform: Crashable, pipeline: str, stage: str) -> str:
    """Wait until the stage runs, and let it end; its job."""

    def job() -> str | None:
        found = platform.call(lambda client: client.pipeline(pipeline)).stages[stage].job
        return found if found and (platform.home / "jobs" / found / "output" / "begun").exists() else None

    name = until(job, 120, f"{stage} runs")
    (platform.home / "jobs" / name / "output" / "hurry").touch()
    return name


def test_a_control_plane_that_is_killed_on_the_way_loses_nothing_and_runs_nothing_twice(
    platform: Crashable, run: Callable[..., PipelineRun]
) -> None:
    platform.failpoints = ["pipeline-submitted", "pipeline-stored", "pipeline-stored:2"]
    kill(platform.control_pid)
    platform.up()
    made = platform.call(
        lambda client: client.run_pipeline(
            {"name": "slow", "stages": {
                "one": {"run": "flow.py:patient", "args": {"place": "begun"}, "cache": False},
                "two": {"run": "flow.py:patient", "args": {"place": "begun", "value": "$one"}, "cache": False},
                "three": {"run": "flow.py:plus", "args": {"value": "$two"}, "cache": False},
            }}, folder=FOLDER, tenant="alpha", key="slow-1",
        )
    )  # fmt: skip
    first = hurry(platform, made.id, "one")
    kill(platform.control_pid)  # and once more, wherever it is
    second = hurry(platform, made.id, "two")
    done = ended(platform, made.id)
    assert done.state == "succeeded", done.view
    assert done.value("three") == 3
    assert (done.stages["one"].job, done.stages["two"].job) == (first, second)
    assert {stage.attempts for stage in done.stages.values()} == {1}
    submitted = [e.text for e in platform.client.events(limit=1000) if e.kind == "job-submitted" and made.id in e.text]
    assert len(submitted) == 3
    platform.failpoints = []


def test_the_places_to_die_at_were_reached(platform: Crashable) -> None:
    assert not platform.failpoints
