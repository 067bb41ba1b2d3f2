"""Decides what a job does when its workers die: go on with the survivors, start over from the snapshot, or fail."""

from __future__ import annotations

from dataclasses import replace
from math import floor

from fairlead.recovery.deaths import DOUBTFUL, FINAL, OTHERS, OWN, Cause, Death, decisive_death, describe_death
from fairlead.recovery.verdicts import Action, Situation, Verdict

TIMES = 3
"""A doubtful death counts against the job after this many repetitions without a completed step in between."""

BLAME_PLAN_AFTER = 2
"""After this many repetitions the planner's plan counts as a possible cause."""

FORGET_S = 600.0
"""After this much progress all earlier deaths are forgotten."""

FIRST_S, LONGEST_S = 1.0, 60.0
"""The first and the longest back-off; it doubles with every repetition."""

OFTEN = 6
"""This many deaths of the same cause in quick succession cause no back-off, if there was progress in between."""

SPACING_S = 10.0
"""Each stretch of this length in which the job worked allows one more."""


def decide(situation: Situation) -> Verdict:
    """What the deaths of one generation mean for its job."""
    asked = _reset_after_progress(situation)
    rounds = _decisive_deaths(asked)
    death = rounds[-1]
    again = _repetitions(rounds)
    verdict = _verdict_without_newcomers(asked, death, rounds) or _verdict(asked, again, _frequency_pause_s(rounds))
    text = _describe(asked, again, counted=verdict.counts)
    return replace(verdict, code=f"worker-{death.cause}", text=text, resets_history=asked is not situation)


def back_off_s(times: int) -> float:
    """The pause after this many repetitions: none before the first."""
    return 0.0 if times <= 0 else min(LONGEST_S, FIRST_S * 2.0 ** min(times - 1, 30))


def _frequency_pause_s(rounds: list[Death]) -> float:
    """The pause after deaths of the same cause that come often, whatever progress was made between them.

    Occasional kills from outside cost nothing. A job that dies again right after each step waits ever longer: time at
    work makes up for earlier deaths, time spent waiting does not.
    """
    level, pause_s = 0.0, 0.0
    before_s: float | None = None
    for death in rounds:
        if death.spared or not _same_kind(death, rounds[-1]):
            continue
        worked_s = 0.0 if before_s is None else max(0.0, death.time_s - before_s - pause_s)
        level, before_s = max(0.0, level - worked_s / SPACING_S) + 1.0, death.time_s
        pause_s = back_off_s(floor(level) - OFTEN)
    return pause_s


def _reset_after_progress(situation: Situation) -> Situation:
    """The same situation; without the earlier deaths if the job has since progressed long enough beyond all of them."""
    reached = max((death.step for death in situation.former if not death.spared), default=0)
    beyond = not situation.training or situation.step > reached
    used = situation.failures > 0 or bool(situation.former)
    if not (used and beyond and situation.progress_s >= FORGET_S):
        return situation
    this = situation.deaths[-1].generation
    return replace(situation, failures=0, former=tuple(one for one in situation.former if one.generation == this))


def _decisive_deaths(asked: Situation) -> list[Death]:
    """The decisive death of each generation; last the one of the generation that is judged now.

    That generation need not be the newest: a later one may have been planned and abandoned already. Spared deaths
    explain nothing that came later.
    """
    this = asked.deaths[-1].generation
    by_generation: dict[int, list[Death]] = {}
    for death in asked.former:
        by_generation.setdefault(death.generation, []).append(death)
    before = [death for death in by_generation.pop(this, []) if not death.spared]
    return [
        *(decisive_death(by_generation[number]) for number in sorted(by_generation)),
        decisive_death([*before, *asked.deaths]),
    ]


def _same_kind(one: Death, other: Death) -> bool:
    """True if both count as the same cause."""
    if one.cause in OTHERS or other.cause in OTHERS:
        return one.cause is other.cause
    return (one.cause in DOUBTFUL) == (other.cause in DOUBTFUL)


def _repetitions(rounds: list[Death]) -> list[Death]:
    """The newest death and all earlier ones with no completed step in between, newest first."""
    newest, found = rounds[-1], []
    for death in reversed(rounds):
        if death.spared or not _same_kind(death, newest):
            continue
        if death.step < newest.step:
            break
        found.append(death)
    return found


def _verdict_without_newcomers(asked: Situation, death: Death, rounds: list[Death]) -> Verdict | None:
    """The verdict when workers died at their start and the gang is large enough without them.

    Not for a worker that raised an error: it named a fault of the job, which must not be ignored.
    """
    said = death.cause in FINAL or death.cause is Cause.RAISED
    at_start = not any(one.joined for one in asked.deaths)
    if said or not at_start or not asked.training or asked.survivors < max(1, asked.min_workers):
        return None
    times, later_s = 1, death.time_s
    for earlier in reversed(rounds[:-1]):
        if not earlier.spared or later_s - earlier.time_s > FORGET_S:
            break
        times, later_s = times + 1, earlier.time_s
    return Verdict(Action.GO_ON, "", "", after_s=back_off_s(times), spares=True)


def _verdict(asked: Situation, again: list[Death], often_s: float) -> Verdict:
    death, pause_s = again[0], max(back_off_s(len(again) - 1), often_s)
    doubtful = death.cause in DOUBTFUL
    without_plan = asked.plan is not None and (
        death.cause in OWN | FINAL or (doubtful and len(again) >= BLAME_PLAN_AFTER)
    )
    if without_plan and not doubtful:
        return Verdict(Action.START_OVER, "", "", without_plan=True)
    if death.cause in OWN | FINAL or (doubtful and _uncounted(again) >= TIMES):
        if death.cause in FINAL or asked.failures >= asked.retries:
            return Verdict(Action.FAIL, "", "", counts=True, without_plan=without_plan)
        return Verdict(Action.START_OVER, "", "", after_s=pause_s, counts=True, without_plan=without_plan)
    enough = asked.survivors >= max(1, asked.min_workers)
    if asked.training and (enough or (asked.survivors > 0 and len(again) == 1)) and not often_s:
        return Verdict(Action.GO_ON, "", "", without_plan=without_plan)
    return Verdict(Action.START_OVER, "", "", after_s=pause_s, without_plan=without_plan)


def _uncounted(again: list[Death]) -> int:
    """How many of these deaths came since the last one that used up a retry."""
    return next((place for place, death in enumerate(again) if death.counted), len(again))


def _describe(asked: Situation, again: list[Death], *, counted: bool) -> str:
    """The reason in one line, such as "w0 was killed by SIGSEGV before step 1"."""
    death, times = again[0], len(again)
    same = sum(one.step == death.step for one in again)
    at = ""
    if asked.training and death.cause not in OTHERS:
        at = "before step 1" if death.step == 0 else f"after step {death.step}"
    often = f", {times} times in a row" if times > 1 else ""
    if at and death.step and same > 1:
        at, often = "", f" ({same} times at step {death.step + 1}: perhaps a poison batch)"
    if not counted:
        return f"{describe_death(death, at)}{often}"
    shown = death.cause not in (Cause.RAISED, Cause.REFUSED, Cause.OUT_OF_MEMORY, Cause.DISK_FULL)
    logs = f"; see fairlead logs {asked.job}" if shown else ""
    return f"{describe_death(death, at)}{often}{logs}"
