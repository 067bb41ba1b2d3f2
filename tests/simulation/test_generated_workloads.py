"""Workloads of many tenants: the same from the same seed, of the load that was asked for, hard for plain DRF."""

from __future__ import annotations

from collections import Counter

import pytest

from fairlead.simulation.engine import Settings, simulate
from fairlead.simulation.generated_workloads import KINDS, NODES, PER_NODE, load_of, multi_tenant, one_failure
from fairlead.simulation.policies import entry


def test_the_same_seed_gives_the_same_jobs_and_another_does_not() -> None:
    def told(seed: int) -> list[tuple[str, float, float | None, float]]:
        return [(job.id, job.arrival_s, job.deadline_s, job.model.work) for job in multi_tenant(4, seed).jobs]

    assert told(1) == told(1)
    assert told(1) != told(2)


@pytest.mark.parametrize("tenants", [2, 5, 10])
def test_the_load_is_what_was_asked_for_and_a_last_job_of_each_kind_and_tenant(tenants: int) -> None:
    trace = multi_tenant(tenants)
    asked_s = sum(job.exclusive_s * (job.asked or 1) for job in trace.jobs)
    load = asked_s / (NODES * PER_NODE * 24 * 3600.0)
    assert load_of(tenants) <= load <= load_of(tenants) + 0.025 * tenants
    assert len({job.tenant for job in trace.jobs}) == tenants
    assert Counter(job.facts["kind"] for job in trace.jobs).keys() == {kind.name for kind in KINDS}


def test_every_deadline_can_be_met_by_the_gang_that_was_asked_for() -> None:
    for job in multi_tenant(10).jobs:
        assert job.deadline_s is not None
        assert job.arrival_s + 2 * job.exclusive_s + 300.0 <= job.deadline_s
        assert 1 == job.min_workers <= (job.asked or 0) <= job.max_workers <= 16


def test_one_node_fails_in_the_middle_and_comes_back() -> None:
    outages, nodes = one_failure(), multi_tenant(2).nodes
    assert outages.until(3600.0, nodes) == []
    (failure,) = outages.until(24 * 3600.0, nodes)
    assert failure.nodes[0] in {node.name for node in nodes}
    assert failure.back_s == failure.at_s + 1800.0
    assert outages.until(48 * 3600.0, nodes) == []


def test_dominant_resource_fairness_scores_as_published_at_ten_tenants() -> None:
    trace = multi_tenant(10)
    policy = entry("drf").make(trace.rigid(), 0)
    figures = simulate(trace.rigid(), trace.nodes, policy, Settings(outages=one_failure())).figures()
    assert figures["jain"] == pytest.approx(0.87, abs=0.015)
    assert figures["deadlines_met"] == pytest.approx(0.917, abs=0.015)
    assert figures["jobs"] == len(trace.jobs)


def test_two_tenants_are_served_better_than_ten() -> None:
    trace = multi_tenant(2)
    policy = entry("drf").make(trace.rigid(), 0)
    figures = simulate(trace.rigid(), trace.nodes, policy, Settings(outages=one_failure())).figures()
    assert figures["jain"] == pytest.approx(0.95, abs=0.05)
    assert figures["deadlines_met"] == pytest.approx(0.992, abs=0.01)
