"""How much work a job still has to do: as declared, or else from what jobs of its class did and how far it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fairlead.scheduling.market.dials import Dials
from fairlead.scheduling.market.offers import Floats
from fairlead.scheduling.state import JobState

KEPT = 64
"""Finished jobs of a class that are remembered."""

PRECEDENT = 4.0
"""One finished job of the same class says as much about a job's length as so many general expectations."""


class Seen(NamedTuple):
    """What was last seen of a job: its class, its work done, the seconds it ran and those it first said it needs."""

    kind: str
    done: float
    ran_s: float
    said_s: float


@dataclass(frozen=True, slots=True)
class History:
    """Finished jobs by class, and the present ones as they were when they were last seen."""

    finished: Mapping[str, tuple[Seen, ...]]
    seen: Mapping[str, Seen]

    @classmethod
    def of(cls, memory: Mapping[str, Any]) -> History:
        return cls(memory.get("finished", {}), memory.get("seen", {}))

    def updated(self, jobs: Sequence[JobState], *, begun: bool = False) -> History:
        """Whoever is gone has finished; it had done about what it was last seen to have done.

        With ``begun`` only those who have done something are looked at: of the others nobody will be asked later.
        """
        here = {job.id for job in jobs}
        finished = dict(self.finished)
        for name in sorted(self.seen.keys() - here):
            last = self.seen[name]
            if last.done > 0:
                finished[last.kind] = (*finished.get(last.kind, ()), last)[-KEPT:]
        return History(finished, {job.id: self._look(job) for job in jobs if not begun or job.work_done > 0})

    def _look(self, job: JobState) -> Seen:
        before = self.seen.get(job.id)
        if before is not None and before.done == job.work_done:
            return before
        said_s = before.said_s if before is not None else _said_s(job)
        return Seen(class_of(job), job.work_done, alone_s(job), said_s)

    def memory(self) -> dict[str, Any]:
        return {"finished": self.finished, "seen": self.seen}

    def pace(self, job: JobState) -> float:
        """By how much jobs of this class took longer than they first said; its own word counts as one precedent."""
        past = self.finished.get(class_of(job), ())
        seen = self.seen.get(job.id)
        said_s = _said_s(job) if seen is None else seen.said_s
        if not past or said_s <= 0:
            return 1.0
        told = [one for one in past if one.said_s > 0]
        return float(np.exp(sum(np.log(max(one.ran_s, 1.0) / one.said_s) for one in told) / (1.0 + len(told))))


def class_of(job: JobState) -> str:
    """Jobs of one class are expected to be about as long, and to be as wrong about it."""
    kind = job.facts.get("application") or job.facts.get("kind") or job.tenant
    return f"{kind}/{job.facts.get('mode', '')}/{job.min_workers}"


def _rigid(job: JobState) -> bool:
    return job.curve is not None and job.max_workers == job.min_workers


def _said_s(job: JobState) -> float:
    if job.curve is None or job.work_left is None or not _rigid(job):
        return 0.0
    return job.work_left / max(job.curve.fastest(job.min_workers), 1e-300)


def alone_s(job: JobState) -> float:
    """The seconds a rigid gang ran, counted as on its best devices."""
    if not job.ran_s:
        return 0.0
    if job.curve is None or not _rigid(job):
        return sum(job.ran_s.values())
    best = max(job.curve.fastest(job.min_workers), 1e-300)
    return sum(ran_s * (job.curve.speed(kind, job.min_workers) or best) / best for kind, ran_s in job.ran_s.items())


def work_done(job: JobState) -> float:
    """In units of its present curve; a rigid gang's from the time it ran, as its rate may have been another before."""
    if job.curve is None or not _rigid(job) or not job.ran_s:
        return job.work_done
    return alone_s(job) * job.curve.fastest(job.min_workers)


def work_left(jobs: Sequence[JobState], reference: Floats, history: History, dials: Dials) -> Floats:
    """In units of each job's curve; ``reference`` is its speed on its most efficient gang.

    Declared work is corrected by how wrong jobs of the class were, less so the further the job is. Unknown and without
    a precedent, lengths are taken to be heavy-tailed: what a job has done is what it is expected to still need, besides
    a minimum. With precedents it is nearly the mean of those that had done more than this one has.
    """
    left = np.zeros(len(jobs))
    for at, job in enumerate(jobs):
        if job.work_left is not None:
            left[at] = job.work_left
            if history.finished and _rigid(job) and (pace := history.pace(job)) != 1.0:
                remaining_s = job.work_left / max(float(reference[at]), 1e-300)
                left[at] *= pace ** (remaining_s / max(remaining_s + alone_s(job), 1e-9))
            continue
        prior = dials.prior_shape * job.work_done + dials.prior_s * reference[at]
        if job.facts and (said := float(job.facts.get("takes_s", 0.0)) * reference[at]) > job.work_done:
            prior = said - job.work_done
        past = history.finished.get(class_of(job), ())
        longer = [one.done - job.work_done for one in past if one.done > job.work_done]
        weight = PRECEDENT * len(longer)
        left[at] = (prior + PRECEDENT * sum(longer)) / (1.0 + weight)
    return left
