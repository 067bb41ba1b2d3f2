"""Growing, shrinking, preempting, raising and falling silent, on a real platform, by the scheduler's own decisions."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.chaos.crashable import PROGRAMS, Crashable, same_curve, wait_until

STEPS = 200


@pytest.fixture(scope="module")
def undisturbed(platform: Crashable) -> dict[int, float]:
    job = platform.train("undisturbed", workers="1", steps=STEPS, pause_s=0.0)
    platform.wait_for_end(job.id)
    return platform.losses(job.id)


@pytest.fixture(autouse=True)
def _an_empty_queue(platform: Crashable) -> Iterator[None]:
    """Each test has the cluster to itself, whatever became of the one before."""
    yield
    for job in platform.call(lambda c: list(c.jobs(state="active"))):
        platform.call(lambda c, job=job: c.cancel(job.id))
    wait_until(lambda: not platform.call(lambda c: list(c.jobs(state="active"))), 60, "the queue is empty")


def workers_over_time(platform: Crashable, job: str) -> list[int]:
    generations = platform.call(lambda c: c.detail(job).generations)
    return [len(generation.members) for generation in generations if generation.running_s is not None]


def test_a_gang_shrinks_for_another_tenant_and_grows_back(platform: Crashable, undisturbed: dict[int, float]) -> None:
    job = platform.train("breathes", workers="1:3", plan="dp", steps=STEPS, pause_s=0.6)
    wait_until(lambda: platform.view(job.id).step > 0, 40, "it trains")
    assert platform.view(job.id).workers == 3, "alone it takes the whole cluster"
    pids = platform.workers(job.id)
    guest = platform.train("guest", tenant="beta", workers="1", steps=40, pause_s=0.02)
    wait_until(lambda: platform.state(guest.id) == "running", 40, "room is made for the other tenant")
    assert platform.view(job.id).workers == 2
    stayed = platform.workers(job.id)
    assert len(stayed) == 2
    assert stayed.items() <= pids.items(), "the survivors are the same processes"
    wait_until(lambda: platform.ended(guest.id), 40, "the guest ends")
    wait_until(lambda: platform.ended(job.id) or platform.view(job.id).workers == 3, 40, "it grows back")
    assert stayed.items() <= platform.workers(job.id).items()
    wait_until(lambda: platform.view(job.id).state == "running", 40, "and goes on")
    platform.hurry(job.id)
    wait_until(lambda: platform.ended(job.id), 60, "it ends")
    assert platform.state(job.id) == "succeeded"
    assert workers_over_time(platform, job.id)[:3] == [3, 2, 3]
    same_curve(platform.losses(job.id), undisturbed)


def test_a_preempted_job_goes_on_where_it_stopped(platform: Crashable, undisturbed: dict[int, float]) -> None:
    job = platform.train("yields", workers="3", steps=STEPS, pause_s=0.1)
    wait_until(lambda: platform.view(job.id).step > 4, 40, "it trains")
    fields = {"name": "urgent", "tenant": "alpha", "workers": "3", "priority": 10, "params": {"steps": 20}}
    urgent = platform.submit("train.py:training", folder=PROGRAMS, key="urgent", **fields)
    wait_until(lambda: platform.ended(urgent.id), 60, "the urgent one runs first")
    platform.hurry(job.id)
    wait_until(lambda: platform.ended(job.id), 60, "the other one goes on and ends")
    view = platform.view(job.id)
    assert (view.state, view.preemptions) == ("succeeded", 1)
    log = "".join(line.text for line in platform.call(lambda c: list(c.logs(job.id))))
    assert "from step 0 (start)" in log
    assert log.count("from step 0 (start)") == 3, "each worker of the first generation, and nobody later, began at 0"
    same_curve(platform.losses(job.id), undisturbed)


def test_a_rank_that_raises_ends_its_gang_within_five_seconds(platform: Crashable) -> None:
    fields = {"name": "raises", "tenant": "alpha", "workers": "2"}
    job = platform.submit("faulty.py:raises_on_one_rank", folder=PROGRAMS, key="raises", **fields)
    wait_until(lambda: platform.ended(job.id), 40, "it fails")
    view = platform.view(job.id)
    assert view.state == "failed"
    assert "ValueError: the cat sat on the keyboard" in (view.message or "")
    events = [e for e in platform.call(lambda c: list(c.events(job=job.id))) if e.kind in ("job-failing", "job-failed")]
    assert events[-1].time_s - events[0].time_s < 5.0
    assert not platform.workers(job.id)


def test_a_failing_job_is_tried_again_as_often_as_it_asked(platform: Crashable) -> None:
    fields = {"name": "stubborn", "tenant": "alpha", "command": ["sh", "-c", "exit 7"], "retries": 2}
    job = platform.submit(fields, folder=PROGRAMS, key="stubborn")
    wait_until(lambda: platform.ended(job.id), 40, "it fails for good")
    view = platform.view(job.id)
    assert view.state == "failed"
    assert "exit code 7" in (view.message or "")
    assert len(platform.call(lambda c: c.detail(job.id).generations)) == 3


def test_a_silent_rank_is_ended_and_the_gang_goes_on(platform: Crashable, undisturbed: dict[int, float]) -> None:
    fields = {"name": "silent", "tenant": "alpha", "workers": "2:3", "silence_timeout": "3s"}
    params = {"steps": STEPS, "pause_s": 0.1}
    job = platform.submit("train.py:training", folder=PROGRAMS, key="silent", params=params, **fields)
    wait_until(lambda: platform.view(job.id).step > 3, 40, "it trains")
    workers = platform.workers(job.id)
    frozen = workers[sorted(workers)[-1]]
    os.kill(frozen, signal.SIGSTOP)
    before_s = time.monotonic()
    step = platform.view(job.id).step
    wait_until(lambda: platform.view(job.id).step > step + 4, 60, "it goes on without the silent one")
    print(f"went on {time.monotonic() - before_s:.1f} s after a rank fell silent (patience 3 s)")
    platform.hurry(job.id)
    wait_until(lambda: platform.ended(job.id), 60, "it ends")
    assert platform.state(job.id) == "succeeded"
    assert frozen not in platform.workers().values()
    same_curve(platform.losses(job.id), undisturbed)
