"""Who comes first: priority with ageing and SLA slack within a tenant, least served first between tenants."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from math import floor, inf

from fairlead.scheduling.gain import remaining_s
from fairlead.scheduling.state import JobState, TenantState

AGEING_S = 60.0  # waiting this long is worth one step of priority, so that nothing starves
URGENT_S = 60.0  # a promise that must be kept within this time is urgent
URGENT_STEPS = 100  # of priority, for a job whose promise is urgent and can still be kept


def waited_s(job: JobState, now_s: float) -> float:
    return max(0.0, now_s - max(job.since_s, job.submitted_s))


def slack_s(job: JobState, now_s: float) -> float:
    """Seconds the job can still wait without breaking its promise; infinite without one."""
    start = inf if job.start_by_s is None else job.start_by_s - now_s
    if job.finish_by_s is None:
        return start
    run_s = remaining_s(job, job.max_workers) or 0.0
    return min(start, job.finish_by_s - now_s - run_s)


def urgent(job: JobState, now_s: float) -> bool:
    """Whether a promise is about to be broken; one that is broken already no longer pushes others aside."""
    return 0.0 <= slack_s(job, now_s) <= URGENT_S


def rank(job: JobState, now_s: float) -> tuple[int, float, float, str]:
    """Sorts the waiting jobs of one tenant: the smaller, the earlier."""
    slack = slack_s(job, now_s)
    steps = job.priority + floor(waited_s(job, now_s) / AGEING_S)
    if 0.0 <= slack <= URGENT_S:
        steps += URGENT_STEPS
    return (-steps, slack if slack >= 0.0 else inf, job.submitted_s, job.id)


def line_up(
    waiting: Iterable[JobState], tenants: Mapping[str, TenantState], used: Mapping[str, int], now_s: float
) -> Sequence[JobState]:
    """All waiting jobs in the order in which they are looked at.

    Tenants take turns: next is the one that would hold fewest devices for its weight, then the one that
    was served least so far. Within a tenant, its own priorities count, so nobody gains on others by them.
    """
    queues: dict[str, list[tuple[tuple[int, float, float, str], JobState]]] = {}
    for job in waiting:
        queues.setdefault(job.tenant, []).append((rank(job, now_s), job))
    for queue in queues.values():
        queue.sort(key=lambda entry: entry[0], reverse=True)  # the first job is at the end, where pop is cheap
    holding = {name: used.get(name, 0) for name in queues}

    def turn(name: str) -> tuple[bool, float, float, str]:
        tenant, (_, head) = tenants[name], queues[name][-1]
        return (
            not urgent(head, now_s), holding[name] / tenant.weight, tenant.attained_device_s / tenant.weight, name,
        )  # fmt: skip

    turns = [turn(name) for name in queues]
    heapq.heapify(turns)
    line: list[JobState] = []
    while turns:
        name = heapq.heappop(turns)[-1]
        job = queues[name].pop()[1]
        line.append(job)
        holding[name] += job.min_workers
        if queues[name]:
            heapq.heappush(turns, turn(name))
    return line
