"""What is known of the end of a worker, whose fault it is, and how it is told."""

from __future__ import annotations

import signal

import pytest

from fairlead.recovery.deaths import (
    DOUBTFUL,
    FINAL,
    OTHERS,
    OWN,
    Cause,
    Death,
    cause_of,
    decisive_death,
    describe_death,
)


@pytest.mark.parametrize(
    ("code", "number", "told", "cause"),
    [
        (0, None, None, Cause.UNFINISHED),
        (3, None, None, Cause.EXITED),
        (None, signal.SIGSEGV, None, Cause.CRASHED),
        (None, signal.SIGABRT, None, Cause.CRASHED),
        (None, signal.SIGSYS, None, Cause.CRASHED),
        (None, 40, None, Cause.CRASHED),
        (None, signal.SIGKILL, None, Cause.KILLED),
        (None, signal.SIGTERM, None, Cause.KILLED),
        (None, signal.SIGKILL, "out-of-memory", Cause.OUT_OF_MEMORY),
        (None, signal.SIGKILL, "silent", Cause.SILENT),
        (None, signal.SIGKILL, "stopped", Cause.STOPPED),
        (None, signal.SIGKILL, "disk-full", Cause.DISK_FULL),
        (None, signal.SIGKILL, "fork-server-lost", Cause.FORK_SERVER_LOST),
        (None, None, "no-room", Cause.NO_ROOM),
        (1, None, "no-room", Cause.NO_ROOM),
        (None, None, "not-started", Cause.NOT_STARTED),
        (None, None, None, Cause.UNKNOWN),
        (3, None, "a word of a later version", Cause.UNKNOWN),
        (3, None, "node-lost", Cause.UNKNOWN),
    ],
)
def test_the_cause_follows_from_what_the_node_saw(
    code: int | None, number: int | None, told: str | None, cause: Cause
) -> None:
    assert cause_of(code, number, told) is cause


def test_every_cause_is_somebodys_fault_or_in_doubt() -> None:
    groups = (FINAL, OWN, DOUBTFUL, OTHERS)
    assert sorted(cause for group in groups for cause in group) == sorted(Cause)


@pytest.mark.parametrize("cause", Cause)
def test_each_end_is_told_in_one_sentence(cause: Cause) -> None:
    told = describe_death(Death("w0", cause, 1, "SIGSEGV"), "before step 1")
    assert told.startswith("w0") and "\n" not in told


def test_a_crash_is_told_by_its_signal_and_its_step() -> None:
    assert describe_death(Death("w0", Cause.CRASHED, 1, "SIGSEGV"), "before step 1") == (
        "w0 was killed by SIGSEGV before step 1"
    )


@pytest.mark.parametrize(
    ("deaths", "explains"),
    [
        ([("w0", Cause.LOST_TOUCH, 1.0), ("w1", Cause.KILLED, 2.0)], "w1"),
        ([("w0", Cause.KILLED, 1.0), ("w1", Cause.EXITED, 1.1)], "w0"),  # the peer went because of the first
        ([("w0", Cause.EXITED, 1.0), ("w1", Cause.KILLED, 1.1)], "w0"),
        ([("w0", Cause.EXITED, 1.0), ("w1", Cause.NODE_LOST, 2.0)], "w1"),  # a lost node is heard of late
        ([("w0", Cause.RAISED, 1.0), ("w1", Cause.FORK_SERVER_LOST, 1.0)], "w1"),
        ([("w0", Cause.NODE_LOST, 1.0), ("w1", Cause.CRASHED, 2.0)], "w1"),  # nobody else makes it crash
        ([("w0", Cause.KILLED, 1.0), ("w1", Cause.OUT_OF_MEMORY, 2.0)], "w1"),
        ([("w0", Cause.CRASHED, 1.0), ("w1", Cause.REFUSED, 2.0)], "w1"),
        ([("w1", Cause.CRASHED, 1.0), ("w0", Cause.CRASHED, 1.0)], "w0"),
        ([("w0", Cause.LOST_TOUCH, 1.0), ("w1", Cause.NODE_LOST, 9.0)], "w1"),
        ([("w0", Cause.EXITED, 1.0), ("w1", Cause.NODE_LOST, 2.0), ("w2", Cause.EXITED, 1.1)], "w1"),
    ],
)  # fmt: skip
def test_one_death_explains_the_others(deaths: list[tuple[str, Cause, float]], explains: str) -> None:
    found = [Death(worker, cause, 1, time_s=time_s) for worker, cause, time_s in deaths]
    assert decisive_death(found).worker == explains
    assert decisive_death(reversed(found)).worker == explains


def test_of_deaths_that_say_as_much_the_earliest_is_told() -> None:
    late, early = (Death(f"w{at}", Cause.RAISED, 1, "odd", time_s=5.0 - at) for at in range(2))
    assert decisive_death([late, early]) is decisive_death([early, late]) is early
