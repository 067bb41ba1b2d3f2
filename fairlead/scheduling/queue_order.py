"""Orders the waiting jobs for display: tenants take turns by what they hold, jobs within a tenant by their bids."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fairlead.scheduling.market_targets import MarketTargets
from fairlead.scheduling.situation import Situation
from fairlead.scheduling.state import JobState


def queue_order(situation: Situation, plan: MarketTargets) -> list[JobState]:
    """All waiting jobs. The next tenant is the one with fewest devices for its weight and its debt. Within a tenant
    jobs that must run come first, then jobs with target seats, then the highest bids, then the oldest."""
    queues: dict[str, list[JobState]] = {}
    for job in reversed(_by_rank(plan, situation.waiting)):  # the next job is at the end, where pop is cheap
        queues.setdefault(job.tenant, []).append(job)
    held = {name: situation.used(name) - situation.owed(name) for name in queues}

    def turn(name: str) -> tuple[bool, bool, float, float, str]:
        tenant, head = situation.tenants[name], queues[name][-1].id
        served = tenant.attained_device_s / tenant.weight
        return (tenant.spent is not None, head not in plan.due, held[name] / tenant.weight, served, name)

    return _in_turns(queues, held, turn)


def _by_rank(plan: MarketTargets, jobs: Sequence[JobState]) -> list[JobState]:
    names = [job.id for job in jobs]
    first = [2 * (name not in plan.due) + (name not in plan.seats) for name in names]
    order = np.lexsort(([job.submitted_s for job in jobs], [-plan.bid.get(name, 0.0) for name in names], first))
    return [jobs[at] for at in order.tolist()]


def _in_turns(
    queues: Mapping[str, list[JobState]], held: dict[str, float],
    turn: Callable[[str], tuple[bool, bool, float, float, str]],
) -> list[JobState]:  # fmt: skip
    """Merges the tenants' queues: the tenant with the least turn comes next, and then counts as holding its gang."""
    turns = [turn(name) for name in queues]
    heapq.heapify(turns)
    line: list[JobState] = []
    while turns:
        name = turns[0][-1]
        job = queues[name].pop()
        line.append(job)
        held[name] += job.min_workers
        if queues[name]:
            heapq.heapreplace(turns, turn(name))
        else:
            heapq.heappop(turns)
    return line
