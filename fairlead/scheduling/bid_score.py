"""How much a job's bid counts: its priority and purpose among its tenant's jobs, and its resource score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fairlead.cluster import Node
from fairlead.scheduling.classes import DeviceShare, Purpose, Signature, purpose, signature
from fairlead.scheduling.job_columns import demands, read
from fairlead.scheduling.state import JobState

MOST_STEPS = 10
"""Steps of priority up and down that count: further ones are as the last. So no bid is ever out of reach of others."""

MOST_BEHIND = 3
"""Stages behind one that count: so a chain never speaks louder than four jobs."""

LEAST = 0.1
"""However little a job takes, it does not bid more than 1 / LEAST times as much for it."""

URGENCY: Mapping[Purpose, float] = {
    Purpose.TRAINING: 1.0,
    Purpose.TUNING: 1.0,
    Purpose.INFERENCE: 4.0,  # somebody waits for the answer
    Purpose.BATCH: 0.5,  # nobody does
}


class ScoreDials(Protocol):
    """What this needs of the dials of a policy."""

    @property
    def alpha(self) -> float: ...
    @property
    def beta(self) -> float: ...
    @property
    def gamma(self) -> float: ...
    @property
    def priority_base(self) -> float: ...


def resource_score(found: Signature, dials: ScoreDials) -> float:
    """RS = α·M + β·C + γ·N of one worker (M3); α + β for who takes just what a device comes with."""
    return dials.alpha * found.memory + dials.beta * found.compute + dials.gamma * found.network


def say(job: JobState, dials: ScoreDials) -> float:
    """How loudly it speaks among the jobs of its tenant: base ** priority, times what its purpose counts, times the
    stages of a pipeline that come to their end by it, one after the other: itself and those behind it."""
    steps = max(-MOST_STEPS, min(MOST_STEPS, job.priority))
    chain = 1 + min(int(job.facts.get("behind", 0)), MOST_BEHIND)
    return float(dials.priority_base**steps) * URGENCY[purpose(job)] * chain


def says(jobs: Sequence[JobState], nodes: Sequence[Node], dials: ScoreDials) -> NDArray[np.float64]:
    """What each bid is multiplied with; 1 where nobody says anything, so that nothing changes at all.

    Among a tenant's jobs the loudest bids as if there were no priorities, all others less: so nobody gains on another
    tenant by shouting. Who takes more than a device's share of memory, cores and network bids less for each device.
    """
    found = np.ones(len(jobs))
    told = set[str]().union(*read(jobs, "facts"))
    if any(read(jobs, "priority")) or "class" in told or "behind" in told:
        said = [say(job, dials) for job in jobs]
        loudest: dict[str, float] = {}
        for job, one in zip(jobs, said, strict=True):
            loudest[job.tenant] = max(loudest.get(job.tenant, 0.0), one)
        found = found * [one / loudest[job.tenant] for job, one in zip(jobs, said, strict=True)]
    asks = any(read(jobs, "demand")) or "used_memory" in told or "used_cpu" in told
    if dials.gamma != 0 or asks:
        share = DeviceShare.of(node for node in nodes if node.schedulable)
        usual = 1.0 + resource_score(Signature(), dials)
        alike = dials.gamma == 0 and "used_memory" not in told and "used_cpu" not in told
        _, of, first = demands(jobs)
        some = [jobs[at] for at in first] if alike else jobs  # whose scores tell those of all
        scores = [1.0 + resource_score(signature(job, share, network=dials.gamma != 0), dials) for job in some]
        factor = np.array([usual / max(score, LEAST * usual) for score in scores])
        found = found * (factor[of] if alike else factor)
    return np.asarray(found, dtype=np.float64)
