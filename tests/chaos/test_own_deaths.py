"""Jobs whose own code ends their workers: they fail soon, with the signal and the trace, or go on without them."""

from __future__ import annotations

from typing import Any

from fairlead.views.jobs import JobDetail
from tests.chaos.crashable import PROGRAMS, Crashable, wait_until


def deadly(
    platform: Crashable, name: str, *, workers: str = "1", retries: int = 0, memory: str = "", **params: Any
) -> str:
    fields: dict[str, Any] = {"name": name, "tenant": "alpha", "workers": workers, "retries": retries, "params": params}
    if memory:
        fields["resources"] = {"memory": memory}
    return platform.submit("deadly.py:training", name, folder=PROGRAMS, **fields).id


def failed(platform: Crashable, job: str, timeout_s: float = 40.0) -> JobDetail:
    platform.wait_for_end(job, timeout_s)
    detail = platform.call(lambda client: client.detail(job))
    assert detail.state == "failed", platform.story(job)
    return detail


def log(platform: Crashable, job: str) -> str:
    return "\n".join(line.text for line in platform.call(lambda client: list(client.logs(job))))


def test_a_training_that_crashes_at_its_start_fails_at_once_and_names_the_signal(platform: Crashable) -> None:
    job = deadly(platform, "crashes-at-start", workers="1:2", how="segv")
    detail = failed(platform, job)
    assert "was killed by SIGSEGV before step 1" in (detail.message or ""), platform.story(job)
    assert len(detail.generations) <= 3
    assert "Fatal Python error: Segmentation fault" in log(platform, job)
    assert "deadly.py" in log(platform, job), "the trace names the line"


def test_a_training_that_ends_itself_with_code_0_fails(platform: Crashable) -> None:
    detail = failed(platform, deadly(platform, "ends-early", how="exit-0"))
    assert "w0 ended with exit code 0 before step 1 without finishing" in (detail.message or "")
    assert len(detail.generations) == 1


def test_a_training_that_runs_out_of_memory_in_its_first_step_fails(platform: Crashable) -> None:
    job = deadly(platform, "memory-at-first-step", how="memory", at="step", memory="600MB")
    detail = failed(platform, job, 60.0)
    assert "ran out of memory before step 1" in (detail.message or ""), platform.story(job)
    assert len(detail.generations) == 1


def test_a_step_that_kills_again_and_again_is_named(platform: Crashable) -> None:
    job = deadly(platform, "poison", retries=3, how="segv", at="step", step=40)
    detail = failed(platform, job, 90.0)
    assert len(detail.generations) == 4, platform.story(job)
    assert "at step 40: perhaps a poison batch" in (detail.message or ""), platform.story(job)


def test_a_gang_whose_second_worker_dies_at_its_start_goes_on_with_one(platform: Crashable) -> None:
    for how in ("segv", "kill", "exit-0", "exit-5"):
        params = {"how": how, "at": "start-of-others", "worker": "w0", "epochs": 3}
        job = deadly(platform, f"second-dies-{how}", workers="1:2", **params)
        platform.wait_for_end(job)
        detail = platform.call(lambda client, job=job: client.detail(job))  # type: ignore[misc]
        assert detail.state == "succeeded", platform.story(job)
        assert len(detail.generations) <= 6, platform.story(job)


def test_a_command_that_kills_itself_fails_after_three_times(platform: Crashable) -> None:
    command = ["sh", "-c", "kill -9 $$"]
    spec = {"name": "kills-itself", "tenant": "alpha", "command": command, "workers": 2}
    job = platform.submit(spec, "kills-itself", folder=PROGRAMS).id
    detail = failed(platform, job)
    assert "was killed by SIGKILL, 3 times in a row" in (detail.message or ""), platform.story(job)
    assert len(detail.generations) == 3


def test_a_command_that_backs_off_says_so_and_until_when(platform: Crashable) -> None:
    spec = {"name": "backs-off", "tenant": "alpha", "command": ["sh", "-c", "exit 3"], "retries": 20}
    job = platform.submit(spec, "backs-off", folder=PROGRAMS).id

    def backs_off() -> bool:
        why = platform.call(lambda client: client.why(job))
        return why.reason.code == "back-off" and "ended with exit code 3" in why.reason.text

    wait_until(backs_off, 40, "it says that it backs off")
    told = platform.call(lambda client: client.why(job))
    assert "backs off until" in told.reason.text
    platform.call(lambda client: client.cancel(job))
