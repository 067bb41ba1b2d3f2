"""Computes the figures of every run (REQUIREMENTS, last section) from jobs and the usage ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from statistics import fmean

from fairlead.cluster import DEVICE, Resources
from fairlead.control.job_views import sla_met
from fairlead.control.records import ENDED, Job, JobPhase, Tenant, Usage, UsageSum
from fairlead.scheduling.metrics import jain
from fairlead.views.reports import JobReport, Report, TenantReport

Held = Usage | UsageSum
"""Usage by a tenant in a period: a ledger line, or a sum of several."""


def job_report(job: Job) -> JobReport:
    return JobReport(
        job=job.id,
        tenant=job.tenant,
        state=str(job.phase),
        wait_s=None if job.started_s is None else job.started_s - job.submitted_s,
        jct_s=None if job.finished_s is None else job.finished_s - job.submitted_s,
        samples_per_s=job.samples_per_s or None,
        recoveries=job.recoveries,
        recovery_s=job.recovery_s / job.recoveries if job.recoveries else None,
        metrics=dict(job.result.get("metrics", {})),
        metrics_left_out=job.result.get("left_out", 0),
    )


def sla_satisfaction(jobs: Iterable[Job], now_s: float) -> float | None:
    """SSR: the fraction of decided SLAs that were met."""
    verdicts = [verdict for verdict in (sla_met(job, now_s) for job in jobs) if verdict is not None]
    return fmean(verdicts) if verdicts else None


def platform_report(
    tenants: Sequence[Tenant],
    jobs: Sequence[Job],
    ledger: Sequence[Held],
    capacity: Resources,
    since_s: float,
    now_s: float,
) -> Report:
    """The platform's figures, per tenant and per job."""
    used: dict[str, float] = defaultdict(float)
    for line in ledger:
        used[line.tenant] += line.device_s
    whole = sum(used.values())
    weights = sum(tenant.weight for tenant in tenants) or 1.0
    first_s = min((line.from_s for line in ledger), default=since_s)
    last_s = max((line.to_s for line in ledger), default=since_s)
    samples = sum(job.step * job.batch_size for job in jobs)
    losses = sum(job.recoveries for job in jobs)
    span_s = last_s - first_s
    own: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        own[job.tenant].append(job)
    return Report(
        since_s=first_s,
        until_s=last_s,
        training_time_s=span_s or None,
        utilisation=_ratio(sum(line.cpu_s for line in ledger), capacity.get("cpu", 0.0) * span_s),
        allocation=_ratio(whole, capacity.get(DEVICE, 0.0) * span_s),
        throughput_per_s=samples / span_s if samples and span_s else None,
        fairness=fairness(tenants, ledger),
        recovery_s=sum(job.recovery_s for job in jobs) / losses if losses else None,
        sla_satisfaction=sla_satisfaction(jobs, now_s),
        tenants=[_tenant(tenant, own[tenant.name], used, whole, weights, now_s) for tenant in tenants],
        jobs=[job_report(job) for job in jobs],
        shares=shares_over_time(ledger),
    )


def _ratio(used: float, there_was: float) -> float | None:
    return used / there_was if there_was else None


def fairness(tenants: Sequence[Tenant], ledger: Sequence[Held]) -> float | None:
    """FI: Jain's index of device time per weight while a tenant was active, over tenants with any usage.

    Device seconds are divided by weight and by the time from the tenant's first to its last usage, so that a tenant
    that came late or needed little does not count as badly treated.
    """
    weights = {tenant.name: tenant.weight for tenant in tenants}
    own: dict[str, list[float]] = {}
    for line in ledger:
        if line.tenant in weights:
            sums = own.setdefault(line.tenant, [0.0, line.from_s, line.to_s])
            sums[:] = sums[0] + line.device_s, min(sums[1], line.from_s), max(sums[2], line.to_s)
    rates = [held_s / (to_s - from_s) / weights[name] for name, (held_s, from_s, to_s) in own.items() if to_s > from_s]
    return jain(rates) if rates else None


def shares_over_time(ledger: Sequence[Held], points: int = 200) -> list[dict[str, float | dict[str, float]]]:
    """Mean devices held by each tenant in equal intervals, for a plot of the shares."""
    if not ledger:
        return []
    first_s, last_s = min(line.from_s for line in ledger), max(line.to_s for line in ledger)
    step_s = max((last_s - first_s) / points, 1e-3)
    held: list[dict[str, float]] = [defaultdict(float) for _ in range(points)]
    for line in ledger:
        begin, end = (line.from_s - first_s) / step_s, (line.to_s - first_s) / step_s
        for index in range(int(begin), min(ceil(end), points)):
            # Weighted by overlap: tenants that leave and come within one interval must not add up to too much.
            held[index][line.tenant] += line.devices * (min(end, index + 1) - max(begin, index))
    return [{"time_s": first_s + index * step_s, "devices": dict(row)} for index, row in enumerate(held)]


def job_figures(
    job: Job, usage: Sequence[Held], report_fairness: float | None, core_s: float, now_s: float
) -> dict[str, float | None]:
    """TT, RU, TP, FI, FRT and SSR of one job, for its result."""
    took_s = job.finished_s - job.started_s if job.finished_s and job.started_s else None
    device_s = sum(line.device_s for line in usage)
    verdict = sla_met(job, now_s)
    return {
        "TT": took_s,
        "RU": _ratio(sum(line.cpu_s for line in usage), core_s),
        "TP": job.step * job.batch_size / took_s if took_s and job.batch_size else None,
        "FI": report_fairness,
        "FRT": job.recovery_s / job.recoveries if job.recoveries else None,
        "SSR": None if verdict is None else float(verdict),
        "device_s": device_s,
    }


def _tenant(
    tenant: Tenant, jobs: Sequence[Job], used: Mapping[str, float], whole: float, weights: float, now_s: float
) -> TenantReport:
    waits = [job.started_s - job.submitted_s for job in jobs if job.started_s is not None]
    spans = [job.finished_s - job.submitted_s for job in jobs if job.finished_s and job.phase is JobPhase.SUCCEEDED]
    return TenantReport(
        tenant=tenant.name,
        weight=tenant.weight,
        entitlement=tenant.weight / weights,
        share=used.get(tenant.name, 0.0) / whole if whole else 0.0,
        device_s=used.get(tenant.name, 0.0),
        jobs=len(jobs),
        finished=sum(job.phase in ENDED for job in jobs),
        mean_wait_s=fmean(waits) if waits else None,
        mean_jct_s=fmean(spans) if spans else None,
        sla_satisfaction=sla_satisfaction(jobs, now_s),
    )
