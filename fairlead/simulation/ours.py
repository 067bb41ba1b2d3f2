"""Our own policy as a live cluster carries it out, asked again until what it frees has been given away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fairlead.scheduling.carry.round import carried
from fairlead.scheduling.state import ClusterState, Decision, JobState, Preempt, Reason, Resize, Round, Start

REASON = Reason("settled", "decided in the same round, once devices had become free")
PASSES = 6
"""Live, devices are free when their workers are gone, and the next round gives them away; here both happen at once."""


def settled(state: ClusterState) -> Round:
    """All decisions of as many rounds as it takes until nothing changes any more, as one."""
    before = {job.id: job.seats for job in state.jobs}
    seen, found = state, carried(state)
    for _ in range(PASSES - 1):
        changes = {decision.job: decision for decision in found.decisions if not _waits(decision)}
        if not any(isinstance(change, Preempt | Resize) for change in changes.values()):
            break
        seen = replace(seen, jobs=[_moved(job, changes.get(job.id), state.now_s) for job in seen.jobs],
                       memory=found.memory)  # fmt: skip
        found = carried(seen)
    last = {decision.job: decision for decision in found.decisions}
    jobs = [_moved(job, last.get(job.id), state.now_s) for job in seen.jobs]
    return Round(tuple(_between(before, jobs, last)), found.entitlements, found.memory)


def _waits(decision: Decision) -> bool:
    return not isinstance(decision, Start | Resize | Preempt)


def _moved(job: JobState, decision: Decision | None, now_s: float) -> JobState:
    if isinstance(decision, Preempt):
        return replace(job, seats=(), since_s=now_s)
    return replace(job, seats=decision.seats, since_s=now_s) if isinstance(decision, Start | Resize) else job


def _between(
    before: Mapping[str, tuple[str, ...]], jobs: list[JobState], last: Mapping[str, Decision]
) -> list[Decision]:
    """One decision per job that leads from the first seats to the last ones."""
    made: list[Decision] = []
    for job in jobs:
        was, decision = before[job.id], last.get(job.id)
        if sorted(was) == sorted(job.seats):
            if decision is not None and _waits(decision):
                made.append(decision)
            continue
        reason = decision.reason if decision is not None else REASON
        if not job.seats:
            made.append(Preempt(job.id, reason))
        else:
            made.append(Resize(job.id, job.seats, reason) if was else Start(job.id, job.seats, reason))
    return made
