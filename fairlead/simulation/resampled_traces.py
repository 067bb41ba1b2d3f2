"""Resamples a trace from a seed: draws its jobs and the gaps between its arrivals again."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

from fairlead.simulation.trace import Trace, TraceJob


def resampled(trace: Trace, seed: int) -> Trace:
    """As many jobs, each drawn from the trace's (some come twice, some not at all), at gaps drawn from its gaps.

    So load, mix and burstiness are alike while no arrival meets the same cluster as before: whoever was fitted to the
    trace itself shows it here. Deadlines move with their jobs.
    """
    source = random.Random(f"{trace.name}/{seed}")
    jobs = sorted(trace.jobs, key=lambda job: (job.arrival_s, job.id))
    gaps = [after.arrival_s - before.arrival_s for before, after in pairwise(jobs)]
    arrival_s, drawn = jobs[0].arrival_s, []
    for number in range(len(jobs)):
        drawn.append(_again(source.choice(jobs), f"{number}", arrival_s))
        arrival_s += source.choice(gaps) if gaps else 0.0
    return replace(trace, name=f"{trace.name} drawn again, seed {seed}", jobs=drawn)


def _again(job: TraceJob, name: str, arrival_s: float) -> TraceJob:
    deadline_s = None if job.deadline_s is None else job.deadline_s + arrival_s - job.arrival_s
    return replace(job, id=name, arrival_s=arrival_s, deadline_s=deadline_s)
