"""Results of a simulation: every job's outcome, and the figures by which published schedulers are compared."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.scheduling.metrics import jain
from fairlead.simulation.active_job import Segment

UNFAIR = 1.05
"""A job whose finish-time fairness is worse than this counts as treated unfairly (Shockwave's threshold)."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    id: str
    tenant: str
    arrival_s: float
    started_s: float
    finished_s: float
    exclusive_s: float
    deadline_s: float | None
    restarts: int
    device_s: float
    segments: Sequence[Segment] = ()

    @property
    def jct_s(self) -> float:
        return self.finished_s - self.arrival_s


@dataclass(frozen=True, slots=True)
class Window:
    """A time window with the device seconds that each tenant had and was due.

    ``sure`` is what was due without gangs larger than their tenant's entitlement at the time.
    """

    begins_s: float
    ends_s: float
    served: Mapping[str, float]
    due: Mapping[str, float]
    sure: Mapping[str, float] = field(default_factory=dict)

    def ratios(self, *, large: bool = True) -> dict[str, float]:
        """Service over due by tenant; ``large=False`` leaves out gangs larger than the entitlement."""
        wanted = self.due if large else self.sure
        return {name: min(1.0, self.served.get(name, 0.0) / due) for name, due in wanted.items() if due > 0}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole run."""

    jobs: Sequence[JobOutcome]
    devices: int
    jobs_in_trace: int
    began_s: float
    ended_s: float
    energy_kwh: float
    decide_cpu_s: Sequence[float]
    windows: Sequence[Window] = ()
    busy: Sequence[tuple[float, int]] = ()  # (from when, devices in use)
    shares: Sequence[tuple[float, Mapping[str, int]]] = ()  # (from when, devices in use by tenant)
    rounds: int = 0
    declined: Sequence[JobOutcome] = ()  # declined by the policy
    peak_c: Mapping[str, float] = field(default_factory=dict)  # highest temperature by node, where simulated

    @property
    def makespan_s(self) -> float:
        return self.ended_s - self.began_s

    def rho(self, job: JobOutcome) -> float:
        """Static finish-time fairness: completion time over that on an equal share of the cluster (Shockwave)."""
        crowd = max(1.0, self.jobs_in_trace / self.devices)
        return job.jct_s / (job.exclusive_s * crowd) if job.exclusive_s > 0 else 0.0

    def dynamic_rhos(self) -> list[float]:
        """Finish-time fairness as in Themis: with the mean number of jobs during each job's lifetime."""
        moments = sorted([(job.arrival_s, 1) for job in self.jobs] + [(job.finished_s, -1) for job in self.jobs])
        times, sums, present, total, last_s = [], [], 0, 0.0, self.began_s
        for when_s, change in moments:
            total += present * (when_s - last_s)
            present, last_s = present + change, when_s
            times.append(when_s)
            sums.append(total)
        found = []
        for job in self.jobs:
            lived = sums[bisect_left(times, job.finished_s)] - sums[bisect_left(times, job.arrival_s)]
            crowd = max(1.0, lived / job.jct_s / self.devices) if job.jct_s > 0 else 1.0
            if job.exclusive_s > 0:
                found.append(job.jct_s / (job.exclusive_s * crowd))
        return found

    def figures(self) -> dict[str, float | int | None]:
        """The figures by name, as ``fairlead simulate --json`` prints them."""
        jcts = sorted(job.jct_s for job in self.jobs)
        rhos = [self.rho(job) for job in self.jobs if job.exclusive_s > 0]
        bound = [job for job in (*self.jobs, *self.declined) if job.deadline_s is not None]
        met = [job for job in bound if job.finished_s <= (job.deadline_s or 0.0)]
        served_s = sum(job.device_s for job in self.jobs)
        cpu = sorted(self.decide_cpu_s)
        return {
            "makespan_s": self.makespan_s,
            "avg_jct_s": _mean(jcts),
            "p50_jct_s": percentile(jcts, 50),
            "p99_jct_s": percentile(jcts, 99),
            "worst_rho": max(rhos, default=0.0),
            "unfair_fraction": sum(rho > UNFAIR for rho in rhos) / len(rhos) if rhos else 0.0,
            "utilisation": served_s / (self.devices * self.makespan_s) if self.makespan_s > 0 else 0.0,
            "deadlines_met": len(met) / len(bound) if bound else None,
            "jain": self.jain(),
            "restarts_per_job": _mean([float(job.restarts) for job in self.jobs]),
            "energy_kwh": self.energy_kwh,
            "decide_cpu_s_mean": _mean(cpu),
            "decide_cpu_s_p99": percentile(cpu, 99),
            "jobs": len(self.jobs),
        }

    def jain(self) -> float:
        """Jain's index: between tenants the mean over windows of service over due; of one tenant between its jobs."""
        if len({job.tenant for job in self.jobs}) > 1:
            return _mean([jain(window.ratios().values()) for window in self.windows])
        rhos = [self.rho(job) for job in self.jobs if job.exclusive_s > 0]
        return jain(1.0 / rho for rho in rhos if rho > 0)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Percentile of ascending values with linear interpolation, as in the published figures."""
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
