"""Plain commands through crashes: however short they are and whoever dies, each runs once."""

from __future__ import annotations

from tests.chaos.crashable import PROGRAMS, Crashable, kill, wait_until


def test_a_command_shorter_than_its_own_start_succeeds(platform: Crashable) -> None:
    jobs = [
        platform.call(lambda c, n=n: c.submit(["true"], tenant="alpha", name=f"short-{n}"))  # type: ignore[misc]
        for n in range(3)
    ]
    for job in jobs:
        wait_until(lambda job=job: platform.state(job.id) == "succeeded", 60, "it has succeeded")  # type: ignore[misc]


def test_a_command_that_ended_while_nobody_led_ran_once(platform: Crashable) -> None:
    script = "echo begin >> $FAIRLEAD_OUTPUT/runs; while [ ! -e $FAIRLEAD_OUTPUT/go ]; do sleep 0.05; done"
    job = platform.call(lambda c: c.submit(["sh", "-c", script], tenant="alpha", name="alone"))
    output = platform.home / "jobs" / job.id / "output"
    wait_until(lambda: (output / "runs").exists() and platform.state(job.id) == "running", 60, "it runs")
    workers = platform.workers(job.id)
    kill(platform.control_pid)
    (output / "go").touch()
    wait_until(lambda: not platform.workers(job.id), 60, "it ends with nobody there to hear it")
    platform.up()
    wait_until(lambda: platform.state(job.id) == "succeeded", 60, "it has succeeded")
    assert workers
    assert (output / "runs").read_text() == "begin\n"


def test_a_job_that_comes_in_the_middle_of_a_round_is_not_forgotten(platform: Crashable) -> None:
    """On an idle platform nothing else would ask for the next round."""
    for turn in range(12):
        platform.call(lambda c, turn=turn: c.update_tenant("beta", weight=1 + turn % 2))  # asks for a round
        spec = {"name": f"soon-{turn}", "tenant": "beta", "command": ["true"]}
        job = platform.submit(spec, spec["name"], folder=PROGRAMS)
        wait_until(lambda job=job: platform.ended(job.id), 60, platform.view(job.id).name + " ends")
    platform.call(lambda c: c.update_tenant("beta", weight=1))
