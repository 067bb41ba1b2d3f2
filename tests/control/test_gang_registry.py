"""The leader's memory of gangs: back-offs end on time, resumes void later calls, devices count until a job's end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.cluster import Member
from fairlead.control.reconcile.gang_registry import FREE_EXIT_S, GangRegistry
from fairlead.control.records import Generation, GenerationPhase
from fairlead.recovery.policy import LONGEST_S

from . import made


@pytest.mark.parametrize(
    ("until_s", "now_s", "ends"),
    [
        (100.0, 99.9, False),
        (100.0, 100.0, True),
        (100.0, 101.0, True),
        (100.0 + LONGEST_S, 100.0, False),
        (100.1 + LONGEST_S, 100.0, True),  # longer than any pause: the clock was set back since
    ],
)
def test_a_back_off_ends_at_its_time_and_never_outlasts_a_clock_that_was_set_back(
    until_s: float, now_s: float, *, ends: bool
) -> None:
    registry = GangRegistry({}, {}, {"a": until_s})
    assert registry.end_expired_back_offs(now_s) is ends
    assert ("a" in registry.cooling_until_s) is not ends
    assert not registry.end_expired_back_offs(now_s), "it ends once"


def test_a_stored_back_off_is_restored_unless_memory_knows_of_a_longer_one() -> None:
    registry = GangRegistry({}, {}, {"longer": 130.0})
    jobs = [replace(made.job(), id=name, back_off_until_s=until_s) for name, until_s in [
        ("longer", 120.0), ("stored", 120.0), ("over", 100.0), ("none", None), ("set-back", 100.1 + LONGEST_S),
    ]]  # fmt: skip
    registry.restore_back_offs(jobs, 100.0)
    assert registry.cooling_until_s == {"longer": 130.0, "stored": 120.0}


def test_a_resume_voids_the_call_to_leave_that_generation_and_all_calls_to_join_later_ones() -> None:
    sent = {"leave:2", "leave:3", "join:2", "join:3", "join:4", "stop", "wake:4"}
    registry = GangRegistry({}, {"a": sent}, {})
    registry.record_resume("a", 2)
    assert registry.commands_sent["a"] == {"leave:3", "join:2", "stop", "wake:4"}
    registry.record_resume("unknown", 2)
    assert "unknown" not in registry.commands_sent


def test_devices_count_until_the_last_process_has_ended_but_of_a_finished_job_until_it_finished() -> None:
    registry = GangRegistry({"a": {}}, {}, {})
    members = (Member("w0", 0, "n", 0), Member("w1", 1, "n", 1))
    live = [Generation("a", 1, GenerationPhase.RUNNING, members, "", "", 0.0)]
    job = replace(made.job(), id="a", since_s=50.0)
    assert registry.held_until_s(job, live, "failed", 90.0) == 90.0, "no process is known to have ended"
    registry.record_exit("a", "w0", 1.0, 60.0)
    assert registry.held_until_s(job, live, "failed", 90.0) == 90.0, "one still runs as far as is known"
    registry.record_exit("a", "w1", 1.0, 70.0)
    assert registry.held_until_s(job, live, "failed", 90.0) == 70.0
    assert registry.held_until_s(job, live, "failed", 65.0) == 65.0, "the clock was set back"
    assert registry.held_until_s(replace(job, since_s=68.0), live, "finished", 90.0) == 68.0
    assert registry.held_until_s(job, [], "failed", 90.0) == 90.0
    registry.record_exit("gone", "w0", 1.0, 60.0)
    assert "gone" not in registry.exit_times, "nothing would ever forget a job that is not known"


DONE_S, NOW_S = 100.0, 160.0


@pytest.mark.parametrize(("outcome", "exits", "charged_to_s"), [
    ("finished", {"w0": DONE_S + 1.0, "w1": DONE_S + FREE_EXIT_S}, DONE_S),
    ("finished", {"w0": DONE_S + 1.0, "w1": DONE_S + 30.0}, DONE_S + 30.0),
    ("finished", {"w0": DONE_S + 1.0, "w1": NOW_S + 30.0}, NOW_S),
    ("finished", {}, DONE_S),
    ("failed", {"w0": DONE_S + 1.0, "w1": DONE_S + 3.0}, DONE_S + 3.0),
    ("failed", {"w0": DONE_S + 1.0}, NOW_S),
])  # fmt: skip
def test_a_worker_that_says_it_finished_and_goes_on_is_charged_for_its_device(
    outcome: str, exits: dict[str, float], charged_to_s: float
) -> None:
    known = GangRegistry({}, {}, {}, {"job-1": exits})
    members = (Member("w0", 0, "node-0", 0), Member("w1", 1, "node-1", 0))
    live = [Generation("job-1", 1, GenerationPhase.RUNNING, members, "test", "test", 0.0)]
    assert known.held_until_s(replace(made.job(), id="job-1", since_s=DONE_S), live, outcome, NOW_S) == charged_to_s
