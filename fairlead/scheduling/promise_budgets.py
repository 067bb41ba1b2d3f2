"""Limits promises to their tenant's own share: a deadline displaces other jobs only as far as that share can keep it.

A tenant saves up what is due to it, at most one turn of its largest gang (and owes at most as much); only jobs with a
deadline draw on it. A deadline that needs more than is saved and will be due until then displaces nothing; it is kept
if the tenant's turn comes in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.scheduling.job_views import shortest_remaining_s
from fairlead.scheduling.state import JobState

TURN_S = 60.0
"""A tenant saves up at most so many seconds per device of its largest gang."""


def promise_savings(jobs: Iterable[JobState], memory: Mapping[str, Any], now_s: float) -> dict[str, float]:
    """By tenant, the device seconds that it has saved up for promises."""
    before: Mapping[str, Any] = memory.get("promised", {})
    depth: dict[str, float] = {}
    for job in jobs:
        depth[job.tenant] = max(depth.get(job.tenant, TURN_S), TURN_S * job.min_workers)
    seconds = max(0.0, now_s - float(memory.get("at_s", now_s)))
    found = {}
    for tenant, most in depth.items():
        amount, rate = before.get(tenant, (0.0, 0.0))
        found[tenant] = min(most, max(amount + rate * seconds, -most))
    return found


def affordable_jobs(
    jobs: Iterable[JobState], has: Mapping[str, float], due: Mapping[str, float], kept: Iterable[str], now_s: float
) -> frozenset[str]:
    """The jobs whose deadlines their tenants can keep on their savings and on what will be due to them.

    The earliest deadline comes first, each on its smallest gang. Running jobs that were ``kept`` stay affordable.
    """
    found, taken = set(), dict.fromkeys(has, 0.0)
    before = frozenset(kept)
    bound = sorted((job.finish_by_s, job.id, job) for job in jobs if job.finish_by_s is not None)
    for finish_by_s, _, job in bound:
        area = job.min_workers * shortest_remaining_s(job, job.min_workers, now_s)
        ahead_s = max(0.0, finish_by_s - now_s)
        fits = taken[job.tenant] + area <= has[job.tenant] + due.get(job.tenant, 0.0) * ahead_s
        if fits or (job.seats and job.id in before):
            taken[job.tenant] += area
            found.add(job.id)
    return frozenset(found)


def savings_memory(
    jobs: Iterable[JobState], has: Mapping[str, float], due: Mapping[str, float], sitting: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """For the next round: each tenant's savings, and how fast they grow while jobs hold so many devices. Devices of an
    elastic job beyond its smallest gang are lent, so they do not count."""
    rates = {tenant: due.get(tenant, 0.0) for tenant in has}
    for job in jobs:
        if job.finish_by_s is not None:
            rates[job.tenant] -= min(job.min_workers, sitting.get(job.id, 0))
    return {tenant: (amount, rates[tenant]) for tenant, amount in has.items()}
