"""Computes the factor of a job's bid: its priority and purpose among its tenant's jobs, and its resource score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fairlead.cluster import Node
from fairlead.scheduling.classes import DeviceShare, Purpose, Signature, purpose, signature
from fairlead.scheduling.job_columns import distinct_demands, read_column
from fairlead.scheduling.state import JobState

MOST_STEPS = 10
"""At most so many steps of priority count, up or down, so that no bid is out of reach of the others."""

MOST_BEHIND = 3
"""At most so many pipeline stages behind a job count, so a chain never counts more than four jobs."""

LEAST = 0.1
"""However few resources a job takes, its bid is at most 1 / LEAST times as high."""

URGENCY: Mapping[Purpose, float] = {
    Purpose.TRAINING: 1.0,
    Purpose.TUNING: 1.0,
    Purpose.INFERENCE: 4.0,  # a person waits for the answer
    Purpose.BATCH: 0.5,  # no person waits for it
}


class ScoreConfig(Protocol):
    """The settings of the policy that the score needs."""

    @property
    def alpha(self) -> float: ...
    @property
    def beta(self) -> float: ...
    @property
    def gamma(self) -> float: ...
    @property
    def priority_base(self) -> float: ...


def resource_score(found: Signature, config: ScoreConfig) -> float:
    """RS = α·M + β·C + γ·N of one worker (M3); α + β for a worker that takes just its device's share."""
    return config.alpha * found.memory + config.beta * found.compute + config.gamma * found.network


def bid_factor(job: JobState, config: ScoreConfig) -> float:
    """Weight of its bid among the jobs of its tenant: base ** priority, times the factor of its purpose, times the
    pipeline stages that depend on it, itself included."""
    steps = max(-MOST_STEPS, min(MOST_STEPS, job.priority))
    chain = 1 + min(int(job.facts.get("behind", 0)), MOST_BEHIND)
    return float(config.priority_base**steps) * URGENCY[purpose(job)] * chain


def bid_factors(jobs: Sequence[JobState], nodes: Sequence[Node], config: ScoreConfig) -> NDArray[np.float64]:
    """The factor of each bid; 1 for all where no job has a priority, a purpose or a demand.

    The heaviest job of a tenant bids as if there were no priorities, its other jobs less, so that no tenant gains on
    another by raising priorities. A job that takes more than its devices' share of memory, cores and network bids less
    per device.
    """
    found = np.ones(len(jobs))
    told = set[str]().union(*read_column(jobs, "facts"))
    if any(read_column(jobs, "priority")) or "class" in told or "behind" in told:
        said = [bid_factor(job, config) for job in jobs]
        loudest: dict[str, float] = {}
        for job, one in zip(jobs, said, strict=True):
            loudest[job.tenant] = max(loudest.get(job.tenant, 0.0), one)
        found = found * [one / loudest[job.tenant] for job, one in zip(jobs, said, strict=True)]
    asks = any(read_column(jobs, "demand")) or "used_memory" in told or "used_cpu" in told
    if config.gamma != 0 or asks:
        share = DeviceShare.of(node for node in nodes if node.schedulable)
        usual = 1.0 + resource_score(Signature(), config)
        alike = config.gamma == 0 and "used_memory" not in told and "used_cpu" not in told
        _, of, first = distinct_demands(jobs)
        some = [jobs[at] for at in first] if alike else jobs  # jobs with equal demands have equal scores
        scores = [1.0 + resource_score(signature(job, share, network=config.gamma != 0), config) for job in some]
        factor = np.array([usual / max(score, LEAST * usual) for score in scores])
        found = found * (factor[of] if alike else factor)
    return np.asarray(found, dtype=np.float64)
