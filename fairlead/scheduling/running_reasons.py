"""Explains why a running gang does not grow: what prevents one more worker.

It never names other tenants' jobs, since the reader may not be allowed to see them.
"""

from __future__ import annotations

from fairlead.scheduling.live_plan import LivePlan
from fairlead.scheduling.market_targets import MIN_RUN_S
from fairlead.scheduling.phrases import budget_used_up, devices, rate, reason, utc_minute, with_resources, workers
from fairlead.scheduling.scaling import PAYBACK, first_slower, max_useful_size, saved_s, worth_restarting
from fairlead.scheduling.state import JobState, Reason


def why_not_growing(plan: LivePlan, job: JobState) -> Reason | None:
    """What keeps a running gang without a decision from growing; None if it has all the workers it asked for."""
    size = len(job.seats)
    if size >= job.max_workers:
        return None
    if not job.elastic:
        text = f"it is not elastic, so it keeps the size it started with, although workers.max is {job.max_workers}"
        return reason("not-elastic", text, size=size)
    return _of_its_own(plan, job, size) or _of_the_cluster(plan, job, size)


def _of_its_own(plan: LivePlan, job: JobState, size: int) -> Reason | None:
    """A cause that would keep it from growing on an empty cluster too; the longest-lasting cause first."""
    if size >= max_useful_size(job):
        return _slower(job, size)
    tenant = plan.situation.tenants[job.tenant]
    if tenant.spent is not None:
        text = f"{budget_used_up(tenant.name, tenant.spent)} until {utc_minute(tenant.spent.again_s)}"
        return reason("budget", text, size=size, again_s=tenant.spent.again_s, of=tenant.spent.of or tenant.name)
    if tenant.quota is not None and plan.quota_room(job.tenant) <= 0:
        used = plan.seating.used.get(tenant.name, 0)
        text = f"tenant {tenant.name} uses {used} of its quota of {devices(tenant.quota)}"
        return reason("quota", text, size=size, quota=tenant.quota)
    if not worth_restarting(job, size):
        saved = saved_s(job, size) or 0.0
        gain = f"would save about {saved:.1f} s" if saved > 0 else "would save no time"
        text = (
            f"growing would not pay back: one more worker {gain} of the time left, "
            f"and must save {PAYBACK:g} times the {job.restart_cost_s:.1f} s that the change costs"
        )
        return reason("no-payback", text, size=size, saved_s=saved, cost_s=job.restart_cost_s)
    return None


def _slower(job: JobState, size: int) -> Reason:
    slower = first_slower(job)
    assert slower is not None  # a ceiling below max_workers comes from a measurement
    smaller = [n for n, speed in job.speeds.items() if job.min_workers <= n < slower and speed > 0]
    best = max(smaller, key=lambda n: (job.speeds[n], -n))
    text = (
        f"it was measured slower with {workers(slower)} ({rate(job.speeds[slower])} samples/s) "
        f"than with {best} ({rate(job.speeds[best])})"
    )
    return reason("measured-slower", text, size=size, slower=slower, best=best)


def _of_the_cluster(plan: LivePlan, job: JobState, size: int) -> Reason:
    seating = plan.seating
    shape = seating.shape(job)
    wants = f"{devices(1, job.device_type)}{with_resources(shape.need)}"
    shape = shape.on(seating.kind(seating.seats[job.id]) or "")
    free, idle = seating.places(shape).total, seating.free_devices()
    if seating.most(shape) <= size:
        text = f"no more than {workers(size)} of its kind fit on the nodes in service, even when empty ({wants} each)"
        return reason("no-such-room", text, size=size, idle=idle)
    young_s = MIN_RUN_S - (plan.situation.now_s - job.since_s)
    if free and young_s > 0:
        text = f"it changed size {MIN_RUN_S - young_s:.0f} s ago; next change in {young_s:.0f} s at the earliest"
        return reason("settling", text, size=size, left_s=young_s)
    if free:
        text = f"{devices(free)} idle, but reserved for jobs ahead of it"
        return reason("held-for-others", text, size=size, held=free)
    if idle:
        text = f"{devices(idle)} idle, but none fits: another worker needs {wants}"
        return reason("no-fitting-device", text, size=size, idle=idle)
    return reason("no-free-device", "no device is free for another worker", size=size, idle=0)
