"""What a recovery policy is asked and what it answers; a learned policy fits the same function type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fairlead.recovery.deaths import Death


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the answer to a death may depend on."""

    job: str
    training: bool  # a Training, which makes steps and may change its size; otherwise a command
    deaths: tuple[Death, ...]  # of one generation, unanswered so far; at least one
    former: tuple[Death, ...] = ()  # answered ones, oldest first
    retries: int = 0
    failures: int = 0  # how many of them are used up
    min_workers: int = 1
    survivors: int = 0  # living members that could go on
    step: int = 0  # the newest that the job reported
    progress_s: float = 0.0  # for how long it has worked since it last died of its own or a doubtful cause
    plan: str | None = None  # the planner's plan that it ran, if that may be to blame


class Action(StrEnum):
    GO_ON = "go-on"  # the survivors meet again, smaller or with newcomers
    START_OVER = "start-over"  # the gang ends and goes back into the queue, with its newest snapshot
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens now, and why."""

    action: Action
    code: str  # of the reason, for programs
    text: str  # of the reason, for people: one line
    after_s: float = 0.0  # the back-off: of the next start, or of the next growth if the gang goes on
    counts: bool = False  # uses up one of the retries
    without_plan: bool = False  # the planner's plan is not used for this model again
    spares: bool = False  # these deaths count for nothing
    forgets: bool = False  # what happened before is over: the count begins anew


class Policy(Protocol):
    """Decides what the death of a worker means. Pure."""

    def __call__(self, situation: Situation) -> Verdict: ...
