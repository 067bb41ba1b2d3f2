"""Traces drawn again from a known one."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from fairlead.simulation.generated_workloads import multi_tenant
from fairlead.simulation.resampled_traces import resampled


def test_a_trace_drawn_again_has_the_same_kind_of_jobs_at_other_times_and_only_the_seed_decides() -> None:
    trace = multi_tenant(3)
    drawn = resampled(trace, 1)
    assert drawn == resampled(trace, 1) and drawn != resampled(trace, 2)
    assert len(drawn.jobs) == len(trace.jobs) and len({job.id for job in drawn.jobs}) == len(drawn.jobs)
    assert {job.model for job in drawn.jobs} < {job.model for job in trace.jobs}
    known = Counter(round(b - a, 6) for a, b in pairwise(sorted(job.arrival_s for job in trace.jobs)))
    assert all(round(b.arrival_s - a.arrival_s, 6) in known for a, b in pairwise(drawn.jobs))


def test_a_deadline_moves_with_its_job() -> None:
    trace = multi_tenant(3)
    slack = {job.model: (job.deadline_s or 0.0) - job.arrival_s for job in trace.jobs}
    for job in resampled(trace, 1).jobs:
        assert job.deadline_s is not None and abs(job.deadline_s - job.arrival_s - slack[job.model]) < 1e-6
