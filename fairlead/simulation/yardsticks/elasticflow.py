"""ElasticFlow (ASPLOS 23) for comparison: admits jobs whose deadlines hold, then gives devices where they help most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from fairlead.scheduling.state import ClusterState, JobState, Round
from fairlead.simulation.yardsticks.seating import free_devices, regrown, round_of
from fairlead.simulation.yardsticks.time_slots import Plan, Share, sizes_of


@dataclass(frozen=True, slots=True)
class ElasticFlow:
    """A job is let in only if everybody's deadline can still be kept; then devices go where they return the most."""

    def __call__(self, state: ClusterState) -> Round:
        slot_s = state.round_s or 60.0
        devices = sum(free_devices(state).values())
        jobs = sorted(state.jobs, key=lambda job: (_deadline(job), job.submitted_s, job.id))
        known: Mapping[str, bool] = state.memory.get("admitted", {})
        admitted = {job.id: known[job.id] for job in jobs if job.id in known}
        new = [job for job in jobs if job.id not in admitted]
        if new:
            inside = [job for job in jobs if admitted.get(job.id, True)]
            plan, shares = shared(inside, devices, state.now_s, slot_s)
            kept = all(shares[job.id].ends_s <= _deadline(job) for job in inside)
            admitted |= dict.fromkeys((job.id for job in new), kept)
        inside = [job for job in jobs if admitted[job.id]]
        plan, shares = shared(inside, devices, state.now_s, slot_s)
        gangs = _grown(inside, plan, shares)
        memory: dict[str, Any] = {"admitted": admitted, "wake_s": _next_change(shares, state.now_s, slot_s)}
        declined = {name for name, let_in in admitted.items() if not let_in}
        return round_of(state, regrown(state, gangs), "ElasticFlow", memory, declined)


def _deadline(job: JobState) -> float:
    return math.inf if job.finish_by_s is None else job.finish_by_s


def shared(jobs: Sequence[JobState], devices: int, now_s: float, slot_s: float) -> tuple[Plan, dict[str, Share]]:
    """Minimum satisfactory shares in the order of deadlines."""
    plan = Plan(devices, now_s, slot_s)
    shares = {}
    for job in jobs:
        shares[job.id] = plan.share(job)
        plan.take(shares[job.id])
    return plan, shares


def _grown(jobs: Sequence[JobState], plan: Plan, shares: dict[str, Share]) -> dict[str, int]:
    """What the plan leaves free now goes, one size at a time, to the job whose need of devices changes the most.

    Every grant changes the plan, and with it all offers; but an offer is only looked at again when it comes first.
    """
    gangs = {job.id: shares[job.id].now for job in jobs}
    queue = [(-math.inf, at, False) for at in range(len(jobs))]  # what it is worth, negated; whose; looked at since
    while queue and plan.free_now > 0:
        worth, at, fresh = heappop(queue)
        job = jobs[at]
        offer = _offer(job, gangs[job.id], plan, shares[job.id])
        if offer is None:
            continue
        gain, size, grown = offer
        if not fresh and queue and gain < -queue[0][0]:
            heappush(queue, (-gain, at, True))
            continue
        plan.take(shares[job.id], 1)
        plan.take(grown)
        shares[job.id], gangs[job.id] = grown, size
        queue = [(old, one, False) for old, one, _ in queue]
        heappush(queue, (worth, at, False))
    return gangs


def _offer(job: JobState, gang: int, plan: Plan, share: Share) -> tuple[float, int, Share] | None:
    """One size more for this job: the change in its device time for each device; whoever has none comes first."""
    size = next((size for size in sizes_of(job) if size > gang), None)
    if size is None or size - gang > plan.free_now:
        return None
    plan.take(share, 1)
    grown = plan.share(job, size)
    plan.take(share)
    return (grown.device_slots - share.device_slots) / (size - gang) if gang else math.inf, size, grown


def _next_change(shares: Mapping[str, Share], now_s: float, slot_s: float) -> float:
    """When the plan gives somebody another number of devices for the first time."""
    slots = [slot for one in shares.values() if (slot := one.changes()) is not None]
    return now_s + min(slots, default=math.inf) * slot_s
