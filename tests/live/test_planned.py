"""A live platform plans: it looks at a model while it trains, finds a better plan, changes to it and remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.errors import InvalidSpec
from fairlead.sdk.jobs import Job
from fairlead.views.jobs import PlanView
from tests.chaos.crashable import Crashable, same_curve, wait_until

NODES = "2"
PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_S = 400.0

pytestmark = pytest.mark.timeout(900)  # platforms that share a machine with others take their time


def train(platform: Crashable, name: str, function: str, workers: str = "2", **params: int) -> Job:
    run = f"planned.py:{function}"
    return platform.call(
        lambda client: client.submit(
            run, folder=PROGRAMS, name=name, tenant="alpha", workers=workers, params=dict(params)
        )
    )


def plan_of(platform: Crashable, job: Job) -> PlanView | None:
    return platform.view(job.id).plan


def runs(platform: Crashable, job: Job, name: str) -> bool:
    view = platform.view(job.id)
    return view.state == "running" and view.plan is not None and view.plan.id.startswith(name)


def stop(platform: Crashable, job: Job) -> None:
    platform.call(lambda client: client.cancel(job.id))
    wait_until(lambda: platform.ended(job.id), PATIENCE_S, f"{job.id} has ended")


def test_a_gang_begins_as_whole_copies_and_changes_to_the_plan_that_suits_its_model(platform: Crashable) -> None:
    alone = train(platform, "alone", "small", workers="1", epochs=20)
    platform.wait_for_end(alone.id)
    job = train(platform, "sleepy", "sleepy")
    wait_until(lambda: runs(platform, job, "dp2"), PATIENCE_S, "it begins at once, as two copies")
    first = plan_of(platform, job)
    assert first is not None
    assert first.chosen == "default"
    assert "nothing is known" in first.reason
    wait_until(lambda: runs(platform, job, "single"), PATIENCE_S, "one worker computes, the other rests")
    said = platform.call(lambda client: client.why(job.id))
    before, after = said.generations[0], said.generations[-1]
    assert before.outcome == "replanned"
    assert before.plan is not None
    assert before.plan.step_s is not None and before.plan.measured_step_s is not None
    assert after.reason.code == "better-plan"
    assert "instead of dp2" in after.reason.text
    assert after.plan is not None
    assert (after.plan.chosen, after.plan.workers_used, len(after.members)) == ("planner", 1, 2)
    assert "fastest" in after.plan.reason
    view = platform.view(job.id)
    assert (view.recoveries, view.preemptions) == (0, 0)
    wait_until(lambda: platform.view(job.id).step > view.step, PATIENCE_S, "it trains on")
    stop(platform, job)
    losses, expected = platform.losses(job.id), platform.losses(alone.id)
    same_curve({step: losses[step] for step in expected}, expected)


def test_the_same_model_again_begins_with_its_plan(platform: Crashable) -> None:
    job = train(platform, "again", "sleepy")
    wait_until(lambda: runs(platform, job, "single"), PATIENCE_S, "it runs")
    assert platform.view(job.id).generation == 1
    found = plan_of(platform, job)
    assert found is not None
    assert found.step_s is not None
    stop(platform, job)
    result = platform.call(lambda client: client.result(job.id))
    assert result.plan is not None
    assert result.plan.id == "single"


def test_a_small_model_that_nobody_knows_begins_on_one_worker_and_the_other_rests(platform: Crashable) -> None:
    job = train(platform, "brief", "small", epochs=20)
    platform.wait_for_end(job.id)
    result = platform.call(lambda client: client.result(job.id))
    said = platform.call(lambda client: client.why(job.id))
    assert [len(generation.members) for generation in said.generations] == [2]
    assert result.plan is not None
    assert (result.plan.id, result.plan.chosen, result.plan.workers_used) == ("single", "planner", 1)
    assert "first passes" in result.plan.reason
    assert said.generations[0].plan is not None
    assert (said.generations[0].plan.workers_used, len(said.generations[0].members)) == (1, 2), "one rests, and is held"


def test_what_a_plan_leaves_idle_is_given_back_and_not_given_again(platform: Crashable) -> None:
    job = train(platform, "spare", "small", workers="1:2")
    wait_until(lambda: runs(platform, job, "single"), PATIENCE_S, "it runs on one worker")
    moved = platform.view(job.id)
    wait_until(lambda: platform.view(job.id).step > moved.step + 20_000, PATIENCE_S, "it trains on through some rounds")
    stop(platform, job)
    said = platform.call(lambda client: client.why(job.id))
    assert [len(generation.members) for generation in said.generations] == [1]


def test_a_job_too_short_to_be_looked_at_while_it_runs_has_used_what_it_used(platform: Crashable) -> None:
    busy = ["python", "-c", "import time\nwhile time.process_time() < 0.8: pass"]
    job = platform.call(lambda client: client.submit(busy, name="busy", tenant="alpha"))
    platform.wait_for_end(job.id)
    figures = platform.call(lambda client: client.result(job.id)).figures
    used = (figures["RU"] or 0.0) * (figures["device_s"] or 0.0)
    assert used >= 0.75, figures


def test_a_plan_that_its_author_asked_for_is_run_from_the_first_step(platform: Crashable) -> None:
    job = train(platform, "deep", "deep")
    wait_until(lambda: runs(platform, job, "pp2"), PATIENCE_S, "two stages")
    found = plan_of(platform, job)
    assert found is not None
    assert (found.chosen, platform.view(job.id).generation) == ("asked", 1)
    moved = platform.view(job.id)
    wait_until(lambda: platform.view(job.id).step > moved.step, PATIENCE_S, "it trains on")
    stop(platform, job)


def test_a_plan_that_cannot_run_fails_its_job_and_is_refused_at_the_door_when_that_is_known(
    platform: Crashable,
) -> None:
    job = train(platform, "whole", "whole")
    platform.wait_for_end(job.id, PATIENCE_S)
    view = platform.view(job.id)
    assert (view.state, view.step) == ("failed", 0)
    assert "pp was asked for and cannot run" in (view.message or "")
    fields = {"folder": PROGRAMS, "tenant": "alpha", "workers": "2"}
    with pytest.raises(InvalidSpec, match="tp cannot run this model"):
        platform.client.submit("planned.py:whole", plan="tp", **fields)
    with pytest.raises(InvalidSpec, match="several workers"):
        platform.client.submit("planned.py:small", plan="tp", **(fields | {"workers": "1"}))
