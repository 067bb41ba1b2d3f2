"""Estimates the work that a job has left: as declared, or from finished jobs of its class and its own progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.job_columns import read_column
from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.offers import Floats
from fairlead.scheduling.state import JobState

KEPT = 64
"""Finished jobs kept per class."""

PRECEDENT = 4.0
"""Weight of one finished job of the same class against the general prior."""


class JobEstimate(NamedTuple):
    """The last observation of a job: class, work done, seconds run, and the seconds it first declared."""

    kind: str
    done: float
    ran_s: float
    said_s: float


@dataclass(frozen=True, slots=True)
class History:
    """Finished jobs by class, and the last observation of present jobs."""

    finished: Mapping[str, tuple[JobEstimate, ...]]
    seen: Mapping[str, JobEstimate]

    @classmethod
    def of(cls, memory: Mapping[str, Any]) -> History:
        return cls(memory.get("finished", {}), memory.get("seen", {}))

    def updated(self, jobs: Sequence[JobState], *, begun: bool = False) -> History:
        """The history after this round. A job that is gone has finished, at about the work that was last observed.

        With ``begun`` only jobs that have done work are recorded: the others are never needed later.
        """
        here = set(read_column(jobs, "id"))
        finished = dict(self.finished)
        for name in sorted(self.seen.keys() - here):
            last = self.seen[name]
            if last.done > 0:  # moved to the end: the longest unused classes are dropped first
                finished[last.kind] = (*finished.pop(last.kind, ()), last)[-KEPT:]
        for name in list(finished)[:-MOST_CLASSES]:
            del finished[name]
        seen, known = self.seen, {}
        for at, (name, done) in enumerate(zip(read_column(jobs, "id"), read_column(jobs, "work_done"), strict=True)):
            if begun and done <= 0:
                continue
            before = seen.get(name)
            known[name] = before if before is not None and before.done == done else _look(jobs[at], before)
        return History(finished, known)

    def memory(self) -> dict[str, Any]:
        return {"finished": self.finished, "seen": self.seen}

    def pace(self, job: JobState) -> float:
        """Factor by which jobs of this class took longer than declared; the declaration counts as one precedent."""
        seen = self.seen.get(job.id)
        kind = class_of(job) if seen is None else seen.kind
        past = self.finished.get(kind)
        if not past:
            return 1.0
        said_s = _said_s(job) if seen is None else seen.said_s
        return _usual_pace(kind, past) if said_s > 0 else 1.0


def _look(job: JobState, before: JobEstimate | None) -> JobEstimate:
    said_s = before.said_s if before is not None else _said_s(job)
    return JobEstimate(class_of(job), job.work_done, alone_s(job), said_s)


_PACES: dict[str, tuple[tuple[JobEstimate, ...], float]] = {}
"""Cached pace by class; computed again when another job has finished."""

_BEST: dict[tuple[int, int], tuple[SpeedCurve, float]] = {}
"""Cached best speed by curve and size; a curve is immutable and shared by all jobs of a shape."""

MOST_CLASSES = 1_000
"""Classes whose finished jobs are kept: tenants and sizes come and go for as long as a platform lives."""

MOST_KEPT = 20_000
"""Entries of either cache before it is cleared."""


def _usual_pace(kind: str, past: tuple[JobEstimate, ...]) -> float:
    known = _PACES.get(kind)
    if known is not None and known[0] is past:
        return known[1]
    told = [one for one in past if one.said_s > 0]
    pace = float(np.exp(sum(np.log(max(one.ran_s, 1.0) / one.said_s) for one in told) / (1.0 + len(told))))
    if len(_PACES) >= MOST_KEPT:
        _PACES.clear()
    _PACES[kind] = (past, pace)
    return pace


def _best_speed(curve: SpeedCurve, size: int) -> float:
    known = _BEST.get((id(curve), size))
    if known is not None and known[0] is curve:
        return known[1]
    best = max(curve.fastest(size), 1e-300)
    if len(_BEST) >= MOST_KEPT:
        _BEST.clear()
    _BEST[id(curve), size] = (curve, best)
    return best


def class_of(job: JobState) -> str:
    """The class of a job: jobs of one class are expected to be similarly long, and similarly wrong about it."""
    facts = job.facts
    if not facts:
        return f"{job.tenant}//{job.min_workers}"
    kind = facts.get("application") or facts.get("kind") or job.tenant
    return f"{kind}/{facts.get('mode', '')}/{job.min_workers}"


def _rigid(job: JobState) -> bool:
    return job.curve is not None and job.max_workers == job.min_workers


def _said_s(job: JobState) -> float:
    if job.max_workers != job.min_workers or job.curve is None or job.work_left is None:
        return 0.0
    return job.work_left / _best_speed(job.curve, job.min_workers)


def alone_s(job: JobState) -> float:
    """Seconds that a rigid gang ran, converted to its best devices."""
    if not job.ran_s:
        return 0.0
    if job.curve is None or not _rigid(job):
        return sum(job.ran_s.values())
    curve, size, seconds = job.curve, job.min_workers, 0.0
    best = _best_speed(curve, size)
    for kind, ran_s in job.ran_s.items():
        seconds += ran_s * (curve.speed(kind, size) or best) / best
    return seconds


def work_done(job: JobState) -> float:
    """Work done in units of its present curve; of a rigid gang by run time, as an earlier curve may have differed."""
    if job.curve is None or not _rigid(job) or not job.ran_s:
        return job.work_done
    return alone_s(job) * _best_speed(job.curve, job.min_workers)


def all_done(jobs: Sequence[JobState]) -> Floats:
    """Work done of all jobs; fast where most have not run."""
    done = np.array(read_column(jobs, "work_done"), dtype=np.float64)
    for at, ran_s in enumerate(read_column(jobs, "ran_s")):
        if ran_s:
            done[at] = work_done(jobs[at])
    return done


def work_left(jobs: Sequence[JobState], reference: Floats, history: History, config: MarketConfig) -> Floats:
    """Work left in units of each job's curve; ``reference`` is its speed on its most efficient gang.

    Declared work is corrected by how wrong jobs of the class were, less the further the job is. Unknown lengths without
    a precedent are assumed heavy-tailed: a job is expected to need as much again as it has done, and a minimum. With
    precedents it is nearly the mean of those that did more than this job has done.
    """
    found, speeds = list(read_column(jobs, "work_left")), reference.tolist()
    for at, left in enumerate(found):
        if left is None:
            found[at] = _expected(jobs[at], speeds[at], history, config)
        elif history.finished and _rigid(job := jobs[at]) and (pace := history.pace(job)) != 1.0:
            remaining_s = left / max(speeds[at], 1e-300)
            found[at] = left * pace ** (remaining_s / max(remaining_s + alone_s(job), 1e-9))
    return np.array(found, dtype=np.float64)


def _expected(job: JobState, speed: float, history: History, config: MarketConfig) -> float:
    prior = config.prior_shape * job.work_done + config.prior_s * speed
    if job.facts and (said := float(job.facts.get("takes_s", 0.0)) * speed) > job.work_done:
        prior = said - job.work_done
    if not history.finished:
        return prior
    past = history.finished.get(class_of(job), ())
    longer = [one.done - job.work_done for one in past if one.done > job.work_done]
    return (prior + PRECEDENT * sum(longer)) / (1.0 + PRECEDENT * len(longer))
