"""Answers ``fairlead why`` from a round: why a job waits, keeps what it has or changes, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fairlead.cluster import DEVICE
from fairlead.scheduling.live_plan import LivePlan
from fairlead.scheduling.phrases import amount_shown, devices, node_list, utc_minute, workers
from fairlead.scheduling.running_reasons import why_not_growing
from fairlead.scheduling.seating_plan import Shape
from fairlead.scheduling.state import Decision, Hold, JobState, Preempt, Reason, Resize, Start
from fairlead.scheduling.turn_times import TurnTimes, turn_text

WAITS_FOR_DEVICES = ("no-room", "held-for-others", "making-room")
"""Codes of jobs that wait for devices in use or reserved; jobs with other codes wait for something else."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What ``fairlead why`` shows: one headline, what would help, and a forecast of the start."""

    job: str
    headline: str
    decision: Decision | None  # None: it runs and does not change now
    would_help: tuple[str, ...] = ()
    expected_start_s: float | None = None
    reason: Reason | None = None  # of the decision, or for not changing


class Reasons(Mapping[str, Explanation]):
    """The explanation of each job in a round. An answer decides nothing: it is put into words on request, from the
    results that the round kept."""

    def __init__(self, plan: LivePlan, decisions: Sequence[Decision]) -> None:
        self._plan, self._made, self._turns = plan, decisions, TurnTimes(plan)

    @cached_property
    def _decisions(self) -> dict[str, Decision]:
        return {decision.job: decision for decision in self._made}

    def __len__(self) -> int:
        return len(self._plan.situation.jobs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._plan.situation.jobs)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._plan.situation.jobs

    def __getitem__(self, job_id: str) -> Explanation:
        job, decision = self._plan.situation.jobs[job_id], self._decisions.get(job_id)
        match decision:
            case None if job.frozen:
                text = (
                    "is changing its generation, or pausing after a failed one; it is decided about once that is over"
                )
                return Explanation(job_id, text, None)
            case None:
                return _keeps_running(self._plan, job)
            case Hold():
                why = self._with_turn(decision.reason, job)
                hints = _would_help(decision, job, self._plan, self._firsts)
                return Explanation(job_id, f"waits: {why.text}", decision, hints, decision.expected_start_s, why)
            case _:
                starts_s = _starts_now(decision, self._plan.situation.now_s)
                return Explanation(job_id, decision.reason.text, decision, (), starts_s, decision.reason)

    @cached_property
    def _firsts(self) -> dict[str, str]:
        """By tenant a running job, or else the first waiting one: a higher priority would not help that job."""
        jobs = self._plan.situation.jobs
        running = {jobs[name].tenant: name for name, seats in self._plan.seating.seats.items() if seats}
        return {job.tenant: job.id for job in reversed(self._plan.queue)} | running

    def _with_turn(self, why: Reason, job: JobState) -> Reason:
        """The reason with the turns that the job waits for, if it waits for devices."""
        if why.code not in WAITS_FOR_DEVICES:
            return why
        turn = self._turns.of(job)
        facts: dict[str, Any] = {}
        said = [why.text, self._turns.within_tenant(job)]
        if turn is not None:
            words, facts = turn_text(turn, job, self._plan.situation.now_s)
            said.insert(1, words)
        return Reason(why.code, "; ".join(filter(None, said)), {**why.facts, **facts})


def _keeps_running(plan: LivePlan, job: JobState) -> Explanation:
    runs, why = f"runs with {workers(len(job.seats))} on {node_list(job.seats)}", why_not_growing(plan, job)
    if why is None:
        return Explanation(job.id, runs, None)
    hints = (f"raise the quota of tenant {job.tenant} (now {why.facts['quota']})",) if why.code == "quota" else ()
    if why.code == "budget":
        hints = (f"raise the budget of tenant {why.facts['of']}",)
    return Explanation(job.id, f"{runs} and does not grow: {why.text}", None, hints, None, why)


def _starts_now(decision: Start | Resize | Preempt, now_s: float) -> float | None:
    return now_s if isinstance(decision, Start) else None


def _would_help(hold: Hold, job: JobState, plan: LivePlan, firsts: Mapping[str, str]) -> tuple[str, ...]:
    facts = hold.reason.facts
    fewer = () if job.min_workers == 1 else (f"lower workers.min (now {job.min_workers})",)
    any_type = () if job.device_type is None else (f"drop resources.device (now {job.device_type})",)
    if hold.reason.code == "no-such-room":
        away = sorted(node.name for node in plan.situation.state.nodes if not node.schedulable)
        back = (f"bring back {node_list(tuple(away))}",) if away else ()
        return (*back, *fewer, *any_type, *_asking_less(job, plan.seating.most), "add nodes")
    if hold.reason.code == "quota":
        limit = "the limit that it has reached" if facts["quota"] is None else f"its quota (now {facts['quota']})"
        return (f"wait for a job of tenant {job.tenant} to end", f"raise {limit}", *fewer)
    if hold.reason.code == "budget":
        return (f"raise the budget of tenant {facts['of']}", f"wait until {utc_minute(facts['again_s'])}")
    if hold.reason.code == "making-room":
        return ()
    sooner = ("a higher priority (only within its tenant)",) if firsts[job.tenant] != job.id else ()
    blockers = "the jobs ahead of it" if facts["ahead"] else "running jobs"
    seating, lacking = plan.seating, max(1, facts["needs"] - facts["free"])
    less = _asking_less(job, lambda shape: seating.roomiest(shape)[0])
    more = f"room for {workers(lacking)} more" if less else f"{devices(lacking, job.device_type)} more"
    return (f"{more}, once {blockers} end", *less, *fewer, *any_type, *sooner)


def _asking_less(job: JobState, places: Callable[[Shape], int]) -> tuple[str, ...]:
    """Hints to ask for less: each names a resource or a place limit without which the gang would fit."""
    shape = Shape.of(job)
    if places(shape) >= job.min_workers:
        return ()
    hints = []
    for name, amount in sorted(job.demand.items()):
        without = shape._replace(need=tuple(one for one in shape.need if one[0] != name))
        if name != DEVICE and amount > 0 and places(without) >= job.min_workers:
            hints.append(f"lower resources.{name} (now {amount_shown(name, amount)} per worker)")
    if job.only and places(shape._replace(only=frozenset())) >= job.min_workers:
        hints.append(f"drop placement.only (now {', '.join(sorted(job.only))})")
    return tuple(hints)
