"""Classifies the death of a worker: its cause, whose fault it was, and one sentence that describes it."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """How a worker ended, as far as its node and the control plane know."""

    REFUSED = "refused"  # the job itself is wrong: another attempt would end the same way
    RAISED = "raised"  # an exception of the user's code
    OUT_OF_MEMORY = "out-of-memory"
    DISK_FULL = "disk-full"  # the job holds more than it may
    CRASHED = "crashed"  # a signal that the code itself caused, such as SIGSEGV
    EXITED = "exited"  # an exit code other than 0
    UNFINISHED = "unfinished"  # exit code 0 before the work was done
    KILLED = "killed"  # SIGKILL or SIGTERM that the platform did not send
    SILENT = "silent"  # no progress for too long, so its node ended it
    LOST_TOUCH = "lost-touch"  # alive, but a peer did not answer
    NOT_STARTED = "not-started"  # its node could not start it
    UNKNOWN = "unknown"
    NO_ROOM = "no-room"  # the disk was full before user code began
    STOPPED = "stopped"  # the platform ended it
    FORK_SERVER_LOST = "fork-server-lost"
    NODE_LOST = "node-lost"  # died or fenced with its node


FINAL = frozenset({Cause.REFUSED, Cause.DISK_FULL})
"""The job's fault, and a retry cannot help."""

OWN = frozenset({Cause.RAISED, Cause.OUT_OF_MEMORY, Cause.CRASHED, Cause.EXITED, Cause.UNFINISHED})
"""The job's fault."""

DOUBTFUL = frozenset({Cause.KILLED, Cause.SILENT, Cause.LOST_TOUCH, Cause.NOT_STARTED, Cause.UNKNOWN})
"""The fault is unknown; only repetition shows whether it is the job's."""

OTHERS = frozenset({Cause.NO_ROOM, Cause.STOPPED, Cause.FORK_SERVER_LOST, Cause.NODE_LOST})
"""Never the job's fault, however often it happens."""

_AFTERMATH = frozenset({Cause.RAISED, Cause.EXITED, Cause.UNFINISHED})
_SIGNALS_AFTER = frozenset({"SIGABRT", "SIGPIPE"})
"""What can follow from a peer's death: libraries raise, exit or abort when a connection breaks."""

_REPORTED = {
    str(cause): cause
    for cause in (Cause.OUT_OF_MEMORY, Cause.DISK_FULL, Cause.SILENT, Cause.NO_ROOM, Cause.STOPPED,
                  Cause.FORK_SERVER_LOST, Cause.NOT_STARTED)
}  # fmt: skip
"""Causes that a node reports in addition to exit code and signal."""


@dataclass(frozen=True, slots=True)
class Death:
    """The end of one worker of a generation."""

    worker: str
    cause: Cause
    generation: int
    how: str = ""  # the signal, exit code, error or detail that its node reported
    step: int = 0  # the newest step that the job had reported
    time_s: float = 0.0
    joined: bool = True  # it had joined a generation; False: it died while starting
    spared: bool = False  # the gang went on without it, and the death counted for nothing
    counted: bool = False  # it used up a retry
    answered: bool = False  # a verdict was given


def cause_of(code: int | None, number: int | None, told: str | None) -> Cause:
    """The cause of an end with this exit code or signal; ``told`` is the cause that the node reported, if any."""
    if told is not None:
        return _REPORTED.get(told, Cause.UNKNOWN)
    if number in (signal.SIGKILL, signal.SIGTERM):
        return Cause.KILLED
    if number is not None:
        return Cause.CRASHED
    if code is None:
        return Cause.UNKNOWN
    return Cause.UNFINISHED if code == 0 else Cause.EXITED


def signal_name(number: int) -> str:
    """Such as SIGSEGV; most real-time signals have only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def decisive_death(deaths: Iterable[Death]) -> Death:
    """The death that best explains why a generation lost workers; the other deaths follow from it or say less."""
    found = sorted(deaths, key=lambda death: (death.time_s, death.worker))
    return min(found, key=lambda death: _rank(death, found))


def _rank(death: Death, deaths: list[Death]) -> int:
    if death.cause in FINAL:
        return 0
    peers = [one for one in deaths if one.worker != death.worker]
    earlier = {one.cause for one in peers if one.time_s <= death.time_s}  # a lost node is reported late, though
    explained = bool(earlier & {Cause.KILLED, Cause.SILENT}) or any(one.cause in OTHERS for one in peers)
    follows = death.cause in _AFTERMATH or (death.cause is Cause.CRASHED and death.how in _SIGNALS_AFTER)
    if death.cause is Cause.LOST_TOUCH or (follows and explained):
        return 4
    if death.cause in OWN:
        return 1
    return 2 if death.cause in OTHERS else 3


def describe_death(death: Death, when: str) -> str:
    """How this worker ended, in one sentence; ``when`` names the step, or is empty."""
    who, at = death.worker, f" {when}" if when else ""
    match death.cause:
        case Cause.RAISED | Cause.REFUSED:
            return f"{who}: {death.how}"
        case Cause.OUT_OF_MEMORY:
            limit = f" ({death.how})" if death.how else ""
            return f"{who} ran out of memory{at}: it used more than granted{limit}; raise resources.memory"
        case Cause.DISK_FULL:
            return f"{who} was ended{at} because {death.how}"
        case Cause.CRASHED | Cause.KILLED:
            return f"{who} was killed by {death.how}{at}"
        case Cause.EXITED:
            return f"{who} ended with exit code {death.how}{at}"
        case Cause.UNFINISHED:
            return f"{who} ended with exit code 0{at} without finishing"
        case Cause.SILENT:
            return f"{who} was ended{at} because it reported no progress for too long"
        case Cause.LOST_TOUCH:
            return f"{who} lost its connection to a peer{at}"
        case _:
            return f"{who} {_PLAIN[death.cause]}{f': {death.how}' if death.how else ''}"


_PLAIN = {
    Cause.NOT_STARTED: "could not be started",
    Cause.UNKNOWN: "ended for a reason that its node does not know",
    Cause.NO_ROOM: "could not be started because the disk was full",
    Cause.STOPPED: "was ended by the platform",
    Cause.FORK_SERVER_LOST: "ended because the fork server of its node ended",
    Cause.NODE_LOST: "was lost with its node",
}
