"""Control plane, node managers and workers are killed at random moments: no job is lost, none runs twice."""

from __future__ import annotations

import random
import statistics
import time

from tests.chaos.crashable import Crashable, kill, same_curve, wait_until

ROUNDS = 20
STEPS, PAUSE_S = 500, 0.4


def test_twenty_random_kills_lose_nothing(own_platform: Crashable) -> None:
    platform = own_platform
    chance = random.Random(20261116)
    reference = platform.train("reference", workers="1", steps=STEPS, pause_s=0.0)
    platform.wait_for_end(reference.id)
    jobs = [platform.train(f"alpha-{n}", workers="1:3", steps=STEPS, pause_s=PAUSE_S) for n in range(2)]
    jobs += [platform.train("beta-0", tenant="beta", workers="1:2", steps=STEPS, pause_s=PAUSE_S)]

    killed = {"control": 0, "node": 0, "worker": 0}
    for _ in range(ROUNDS):
        _wait_for_a_step(platform, [job.id for job in jobs])
        time.sleep(chance.uniform(0.0, 0.4))  # the moment itself is what is tested
        kind = chance.choice(["control", "node", "worker", "worker"])
        victims = {
            "control": [platform.control_pid],
            "node": list(platform.node_managers().values()),
            "worker": list(platform.workers().values()),
        }[kind]
        if victims:
            kill(chance.choice(victims))
            killed[kind] += 1
        if not platform.control_lives():
            platform.up()
    assert all(killed.values()), killed
    for job in jobs:
        platform.hurry(job.id)

    wait_until(lambda: all(platform.ended(job.id) for job in jobs), 150, "all jobs end")
    expected = platform.losses(reference.id)
    for job in jobs:
        assert platform.state(job.id) == "succeeded", platform.view(job.id).message
        same_curve(platform.losses(job.id), expected)
    wait_until(lambda: not platform.workers(), 60, "no worker is left")
    assert "contradiction" not in platform.log()
    recovered = [e for e in platform.call(lambda c: c.events(limit=1000)) if e.kind == "job-recovered"]
    assert recovered
    took_s = [event.facts["seconds"] for event in recovered]
    print(f"killed {killed}; {len(took_s)} recoveries, median {statistics.median(took_s):.2f} s, {max(took_s):.2f} s")


def _wait_for_a_step(platform: Crashable, jobs: list[str]) -> None:
    """A gang that loses workers again and again without a step in between is ended on purpose: let it breathe."""
    before = {job: platform.view(job).step for job in jobs}

    def stepped() -> bool:
        views = [platform.view(job) for job in jobs]
        running = [view for view in views if view.state in ("running", "starting", "stopping")]
        return not running or any(view.step > before[view.id] for view in running)

    wait_until(stepped, 60, "some job takes a step")
