"""How much work a job still has to do: as declared, or else from what jobs of its class did and how far it is."""

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
"""Finished jobs of a class that are remembered."""

PRECEDENT = 4.0
"""One finished job of the same class says as much about a job's length as so many general expectations."""


class JobEstimate(NamedTuple):
    """What was last seen of a job: its class, its work done, the seconds it ran and those it first said it needs."""

    kind: str
    done: float
    ran_s: float
    said_s: float


@dataclass(frozen=True, slots=True)
class History:
    """Finished jobs by class, and the present ones as they were when they were last seen."""

    finished: Mapping[str, tuple[JobEstimate, ...]]
    seen: Mapping[str, JobEstimate]

    @classmethod
    def of(cls, memory: Mapping[str, Any]) -> History:
        return cls(memory.get("finished", {}), memory.get("seen", {}))

    def updated(self, jobs: Sequence[JobState], *, begun: bool = False) -> History:
        """Whoever is gone has finished; it had done about what it was last seen to have done.

        With ``begun`` only those who have done something are looked at: of the others nobody will be asked later.
        """
        here = set(read_column(jobs, "id"))
        finished = dict(self.finished)
        for name in sorted(self.seen.keys() - here):
            last = self.seen[name]
            if last.done > 0:  # behind all others: those that nobody has seen for longest are forgotten
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
        """By how much jobs of this class took longer than they first said; its own word counts as one precedent."""
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
"""By class, what its finished jobs say; worked out again when another one has finished."""

_BEST: dict[tuple[int, int], tuple[SpeedCurve, float]] = {}
"""By curve and size, the best speed; one curve is shared by all jobs of a shape, and never changes itself."""

MOST_CLASSES = 1_000
"""Of jobs, whose finished ones are remembered: tenants and sizes come and go for as long as a platform lives."""

MOST_KEPT = 20_000
"""Of either that are remembered before all are forgotten."""


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
    """Jobs of one class are expected to be about as long, and to be as wrong about it."""
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
    """The seconds a rigid gang ran, counted as on its best devices."""
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
    """In units of its present curve; a rigid gang's from the time it ran, as its rate may have been another before."""
    if job.curve is None or not _rigid(job) or not job.ran_s:
        return job.work_done
    return alone_s(job) * _best_speed(job.curve, job.min_workers)


def all_done(jobs: Sequence[JobState]) -> Floats:
    """The same of all jobs; most of a long queue has not run."""
    done = np.array(read_column(jobs, "work_done"), dtype=np.float64)
    for at, ran_s in enumerate(read_column(jobs, "ran_s")):
        if ran_s:
            done[at] = work_done(jobs[at])
    return done


def work_left(jobs: Sequence[JobState], reference: Floats, history: History, config: MarketConfig) -> Floats:
    """In units of each job's curve; ``reference`` is its speed on its most efficient gang.

    Declared work is corrected by how wrong jobs of the class were, less so the further the job is. Unknown and without
    a precedent, lengths are taken to be heavy-tailed: what a job has done is what it is expected to still need, besides
    a minimum. With precedents it is nearly the mean of those that had done more than this one has.
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
