"""The input and output of a recovery policy; a learned policy has the same function type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fairlead.recovery.deaths import Death


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the answer to a death may depend on."""

    job: str
    training: bool  # a Training, which makes steps and may be resized; otherwise a command
    deaths: tuple[Death, ...]  # of one generation, without a verdict so far; at least one
    former: tuple[Death, ...] = ()  # deaths with a verdict, oldest first
    retries: int = 0
    failures: int = 0  # how many of them are used up
    min_workers: int = 1
    survivors: int = 0  # living members that could go on
    step: int = 0  # the newest step that the job reported
    progress_s: float = 0.0  # how long it has worked since its last death of its own or a doubtful cause
    plan: str | None = None  # the planner's plan that it ran, if the plan may be to blame


class Action(StrEnum):
    GO_ON = "go-on"  # the survivors form the next generation, smaller or with newcomers
    START_OVER = "start-over"  # the gang ends and goes back into the queue, with its newest snapshot
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens now, and why."""

    action: Action
    code: str  # the reason for programs
    text: str  # the reason for people: one line
    after_s: float = 0.0  # back-off before the next start, or before the next growth if the gang goes on
    counts: bool = False  # uses up one of the retries
    without_plan: bool = False  # bans the planner's plan for this model
    spares: bool = False  # these deaths do not count
    resets_history: bool = False  # earlier deaths no longer count


class Policy(Protocol):
    """Decides what the deaths of workers mean. Pure."""

    def __call__(self, situation: Situation) -> Verdict: ...
