"""Budgets for deadlines: a promise pushes others aside only as far as its tenant's own share can keep it. Pure.

A tenant saves up for promises what is due to it, at most one turn of its largest gang (and owes no more), and only jobs
with a deadline draw on that. A deadline for which what is saved up, and what will be due until then, is too little
pushes nobody aside; it is kept if the tenant's turn comes in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.scheduling.job_views import least_s
from fairlead.scheduling.state import JobState

TURN_S = 60.0
"""Of each device of a tenant's largest gang, so much can be saved up."""


def saved(jobs: Iterable[JobState], memory: Mapping[str, Any], now_s: float) -> dict[str, float]:
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


def affordable(
    jobs: Iterable[JobState], has: Mapping[str, float], due: Mapping[str, float], kept: Iterable[str], now_s: float
) -> frozenset[str]:
    """The jobs whose deadlines their tenants can keep on what they have saved up and what will be due to them.

    The earliest deadline comes first, each on its smallest gang; those that run and are ``kept`` so far stay so.
    """
    found, taken = set(), dict.fromkeys(has, 0.0)
    before = frozenset(kept)
    bound = sorted((job.finish_by_s, job.id, job) for job in jobs if job.finish_by_s is not None)
    for finish_by_s, _, job in bound:
        area = job.min_workers * least_s(job, job.min_workers, now_s)
        ahead_s = max(0.0, finish_by_s - now_s)
        fits = taken[job.tenant] + area <= has[job.tenant] + due.get(job.tenant, 0.0) * ahead_s
        if fits or (job.seats and job.id in before):
            taken[job.tenant] += area
            found.add(job.id)
    return frozenset(found)


def remembered(
    jobs: Iterable[JobState], has: Mapping[str, float], due: Mapping[str, float], sitting: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """For the next round: what each tenant has saved up, and how fast that grows while jobs have so many
    devices: what an elastic one has beyond its smallest gang it was lent."""
    rates = {tenant: due.get(tenant, 0.0) for tenant in has}
    for job in jobs:
        if job.finish_by_s is not None:
            rates[job.tenant] -= min(job.min_workers, sitting.get(job.id, 0))
    return {tenant: (amount, rates[tenant]) for tenant, amount in has.items()}
