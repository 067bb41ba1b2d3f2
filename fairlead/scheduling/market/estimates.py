"""How much work a job still has to do: as declared, or else from what jobs of its class did and how far it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.scheduling.market.dials import Dials
from fairlead.scheduling.market.offers import Floats
from fairlead.scheduling.state import JobState

KEPT = 64
"""Finished jobs of a class that are remembered."""

Totals = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class History:
    """Work that finished jobs of each class had done, and how far the present ones were when they were last seen."""

    totals: Totals
    seen: Mapping[str, tuple[str, float]]

    @classmethod
    def of(cls, memory: Mapping[str, Any]) -> History:
        return cls(memory.get("totals", {}), memory.get("seen", {}))

    def updated(self, jobs: Sequence[JobState]) -> History:
        """Whoever is gone has finished; it had done about what it was last seen to have done."""
        here = {job.id for job in jobs}
        totals = dict(self.totals)
        for name in sorted(self.seen):
            kind, done = self.seen[name]
            if name not in here and done > 0:
                totals[kind] = (*totals.get(kind, ()), done)[-KEPT:]
        return History(totals, {job.id: (class_of(job), job.work_done) for job in jobs})

    def memory(self) -> dict[str, Any]:
        return {"totals": self.totals, "seen": self.seen}


def class_of(job: JobState) -> str:
    """Jobs of one class are expected to be about as long."""
    return str(job.facts.get("application") or f"{job.tenant}:{job.min_workers}")


def work_done(job: JobState) -> float:
    """In units of its present curve; a rigid gang's from the time it ran, as its rate may have been another before."""
    if job.curve is None or job.max_workers > job.min_workers or not job.ran_s:
        return job.work_done
    best = job.curve.fastest(job.min_workers)
    return sum(ran_s * (job.curve.speed(kind, job.min_workers) or best) for kind, ran_s in job.ran_s.items())


def work_left(jobs: Sequence[JobState], reference: Floats, history: History, dials: Dials) -> Floats:
    """In units of each job's curve; ``reference`` is its speed on its most efficient gang.

    Unknown and without a precedent, lengths are taken to be heavy-tailed: what a job has done is what it is expected to
    still need, besides a minimum. With precedents it is the mean of those that had done more than this one has.
    """
    left = np.zeros(len(jobs))
    for at, job in enumerate(jobs):
        if job.work_left is not None:
            left[at] = job.work_left
            continue
        prior = dials.prior_shape * job.work_done + dials.prior_s * reference[at]
        longer = [total - job.work_done for total in history.totals.get(class_of(job), ()) if total > job.work_done]
        left[at] = (prior + sum(longer) * 4.0) / (1.0 + len(longer) * 4.0) if longer else prior
    return left
