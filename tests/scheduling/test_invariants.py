"""What holds for every round, whatever the cluster: checked on generated states."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster import NodeState
from fairlead.scheduling import decide
from fairlead.scheduling.state import ClusterState, Hold, Preempt, Resize, Start

from .clusters import apply, by_job, changes, clusters, few, overfull, several, used_by_tenant


@several
@given(clusters())
def test_a_round_never_gives_more_of_any_resource_than_a_node_has(before: ClusterState) -> None:
    assert overfull(apply(before, decide(before))) == []


@several
@given(clusters())
def test_a_round_can_be_carried_out_before_anything_it_frees_is_free(before: ClusterState) -> None:
    """Preempted and shrunk gangs may take a while to leave: nobody else is put on their seats meanwhile."""
    decided = by_job(decide(before))
    both = []
    for one in before.jobs:
        decision = decided.get(one.id)
        seats = Counter(one.seats)
        if isinstance(decision, Start | Resize):
            seats |= Counter(decision.seats)
        both.append(replace(one, seats=tuple(seats.elements())))
    assert overfull(replace(before, jobs=both)) == []


@several
@given(clusters())
def test_gangs_are_whole_or_absent_and_within_their_bounds(before: ClusterState) -> None:
    decided = by_job(decide(before))
    for one in before.jobs:
        match decided.get(one.id):
            case Start(seats=seats):
                assert one.min_workers <= len(seats) <= one.max_workers
                assert not one.seats and not one.broken
            case Resize(seats=seats):
                assert one.min_workers <= len(seats) <= one.max_workers
                if not one.elastic and not one.broken:
                    assert len(seats) == len(one.seats)
            case Preempt():
                assert one.seats or one.broken
            case Hold():
                assert not one.seats and not one.broken
            case None:
                assert one.seats or one.frozen


@several
@given(clusters())
def test_new_seats_are_on_ready_nodes_of_the_right_type(before: ClusterState) -> None:
    nodes = {node.name: node for node in before.nodes}
    decided = by_job(decide(before))
    for one in before.jobs:
        decision = decided.get(one.id)
        if isinstance(decision, Start | Resize):
            for name in (Counter(decision.seats) - Counter(one.seats)).elements():
                assert nodes[name].state is NodeState.READY
                assert one.device_type in (None, nodes[name].device_type)


@several
@given(clusters())
def test_no_tenant_gets_more_than_its_quota(before: ClusterState) -> None:
    used = used_by_tenant(apply(before, decide(before)))
    for tenant in before.tenants:
        assert tenant.quota is None or used[tenant.name] <= tenant.quota


@several
@given(clusters())
def test_frozen_jobs_are_left_alone_and_broken_ones_decided_at_once(before: ClusterState) -> None:
    decided = by_job(decide(before))
    for one in before.jobs:
        if one.frozen:
            assert one.id not in decided
        elif one.broken:
            decision = decided[one.id]
            assert isinstance(decision, Resize | Preempt) and decision.reason.code == "worker-lost"
            if len(one.seats) >= one.min_workers:
                assert isinstance(decision, Resize) and decision.seats == one.seats


@several
@given(clusters())
def test_nothing_stays_on_a_draining_node(before: ClusterState) -> None:
    draining = {node.name for node in before.nodes if node.state is NodeState.DRAINING}
    decided = by_job(decide(before))
    for one in before.jobs:
        if draining & set(one.seats) and not one.frozen and not one.broken:
            decision = decided[one.id]
            if not isinstance(decision, Preempt):
                assert isinstance(decision, Resize) and not draining & set(decision.seats)


@several
@given(clusters())
def test_every_waiting_job_and_every_change_has_a_reason(before: ClusterState) -> None:
    round_ = decide(before)
    decided = by_job(round_)
    for one in before.jobs:
        if not one.seats and not one.frozen:
            assert one.id in decided
    for decision in round_.decisions:
        assert decision.reason.code and len(decision.reason.text) > 15
        if isinstance(decision, Hold):
            assert decision.job not in decision.ahead
            assert decision.expected_start_s is None or decision.expected_start_s >= before.now_s


@several
@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_makes_no_difference(before: ClusterState, shuffler: random.Random) -> None:
    shuffled = [list(before.nodes), list(before.tenants), list(before.jobs)]
    for items in shuffled:
        shuffler.shuffle(items)
    nodes, tenants, jobs = shuffled
    again = replace(before, nodes=nodes, tenants=tenants, jobs=jobs)
    assert decide(before) == decide(before)
    assert decide(again) == decide(before)


@few
@given(clusters(healthy=True, one_type=True))
def test_a_victims_tenant_is_never_pushed_below_what_it_is_entitled_to(before: ClusterState) -> None:
    round_ = decide(before)
    used_before, jobs = used_by_tenant(before), {one.id: one for one in before.jobs}
    lost: Counter[str] = Counter()
    for decision in changes(round_):
        if decision.reason.code == "make-room" and decision.reason.facts["to"].tenant != jobs[decision.job].tenant:
            lost[jobs[decision.job].tenant] += decision.reason.facts["devices"]
    waited = {one.tenant for one in before.jobs if not one.seats and before.now_s - one.submitted_s >= 120}
    for tenant, count in lost.items():
        if not waited - {tenant}:  # a tenant that had nothing for long may shrink others further
            assert used_before[tenant] - count >= int(round_.entitlements[tenant] + 1e-9)
