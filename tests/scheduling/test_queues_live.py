"""Queues where decisions take time to be carried out: guarantees come back, limits hold every round, people share."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling import decide
from fairlead.scheduling.queues import Tree
from fairlead.scheduling.state import ClusterState, JobState, Preempt, TenantState

from .clusters import apply, few, job
from .test_queues import KINDS, cluster, markets

RICH, SURE = TenantState("rich", 10.0), TenantState("sure", 0.1, guarantee={"v100": 2.0})


def many(tenant: str, count: int, **fields: Any) -> list[JobState]:
    return [job(f"{tenant}{fields.get('person', '')}-{at:02d}", tenant, **fields) for at in range(count)]


def later(state: ClusterState, rounds: int, wait_s: float = 5.0) -> ClusterState:
    for _ in range(rounds):
        state = apply(state, decide(state), wait_s=wait_s)
    return state


def held(state: ClusterState) -> Counter[str]:
    return Counter(one.tenant for one in state.jobs for _ in one.seats)


def lent_to(*borrowers: JobState) -> ClusterState:
    """Four v100 devices that whoever came first was lent, and then the one to whom two are guaranteed wants them."""
    lent = later(ClusterState(1000.0, cluster(0, 4), [RICH, SURE], list(borrowers)), 2)
    assert held(lent) == {"rich": 4}
    return replace(lent, jobs=[*lent.jobs, *many("sure", 2)])


def test_small_gangs_give_back_what_is_guaranteed_to_another() -> None:
    assert held(later(lent_to(*many("rich", 6)), 5)) == {"rich": 2, "sure": 2}


def test_an_elastic_gang_shrinks_for_a_guarantee_and_goes_on() -> None:
    assert held(later(lent_to(job("wide", "rich", (1, 4))), 5)) == {"rich": 2, "sure": 2}


def test_even_the_last_gang_of_a_borrower_gives_way_to_a_guarantee() -> None:
    state = lent_to(job("wide", "rich", (4, 4)))
    (given_up,) = [one for one in decide(state).decisions if isinstance(one, Preempt)]
    assert "tenant sure, whose tenant is guaranteed devices of type v100" in given_up.reason.text
    assert held(later(state, 5))["sure"] == 2


def test_nobody_takes_what_is_guaranteed_to_another() -> None:
    both = [SURE, replace(SURE, name="also"), RICH]
    state = ClusterState(1000.0, cluster(0, 4), both, many("sure", 3) + many("also", 3))
    full = later(state, 3)
    assert held(full) == {"sure": 2, "also": 2}
    old = many("rich", 4, priority=9, submitted_s=-9999.0, since_s=-9999.0, start_by_s=0.0)
    assert held(later(replace(full, jobs=[*full.jobs, *old]), 12)) == {"sure": 2, "also": 2}


def test_what_is_guaranteed_to_a_parent_comes_back_to_whoever_below_it_wants_it() -> None:
    teams = [
        TenantState("vision", 0.1, guarantee={"v100": 3.0}), TenantState("text", 9.0),
        TenantState("alice", parent="vision"), TenantState("bob", parent="vision"),
    ]  # fmt: skip
    state = later(ClusterState(1000.0, cluster(8, 4), teams, many("text", 20)), 2)
    state = later(replace(state, jobs=[*state.jobs, *many("bob", 9, device_type="v100")]), 6)
    assert held(state) == {"text": 9, "bob": 3}


def test_a_tree_is_shared_out_as_its_weights_say() -> None:
    teams = [
        TenantState("vision", 2.0), TenantState("text", 1.0),
        TenantState("alice", 3.0, parent="vision"), TenantState("bob", 1.0, parent="vision"),
    ]  # fmt: skip
    jobs = many("alice", 20) + many("bob", 20) + many("text", 20)
    assert held(later(ClusterState(1000.0, cluster(0, 12), teams, jobs), 5)) == {"alice": 6, "bob": 2, "text": 4}


def test_a_colleague_who_comes_later_soon_has_as_much() -> None:
    node = [Node("n", {"cpu": 8.0, "memory": 8e9, DEVICE: 8.0}, "v100")]
    state = later(ClusterState(1000.0, node, [TenantState("a")], many("a", 30, person="ada")), 2)
    state = replace(state, jobs=[*state.jobs, *many("a", 30, person="eve", submitted_s=1000.0, since_s=1000.0)])
    state, served = later(state, 10, 20.0), Counter[str]()
    for _ in range(40):
        state = later(state, 1, 20.0)
        served.update(one.person for one in state.jobs for _ in one.seats)
    assert 0.6 < served["eve"] / served["ada"] < 1.7


def test_somebody_whose_only_job_can_never_run_is_in_nobodys_way() -> None:
    jobs = [job("ada", person="ada"), job("eve", person="eve"), job("wide", "a", (9, 9), person="ann")]
    assert held(later(ClusterState(1000.0, cluster(0, 2), [TenantState("a")], jobs), 2)) == {"a": 2}


def test_who_takes_more_memory_than_goes_with_a_device_may_claim_fewer_devices() -> None:
    node = [Node("n", {"cpu": 8.0, "memory": 64e9, DEVICE: 8.0}, "v100")]
    hogs = many("hog", 8, demand={"memory": 16e9})
    state = ClusterState(1000.0, node, [TenantState("hog"), TenantState("meek")], hogs + many("meek", 8))
    assert held(later(state, 3))["meek"] >= 4


@few
@given(markets())
def test_limits_of_all_queues_hold_in_every_round(state: ClusterState) -> None:
    tree, kinds = Tree.of(state.tenants), {node.name: node.device_type for node in state.nodes}
    for _ in range(3):
        state = later(state, 1)
        used: Counter[tuple[str, str]] = Counter()
        for one in state.jobs:
            for queue in tree.path(one.tenant):
                used.update((queue, kinds[seat]) for seat in one.seats)
        for tenant in state.tenants:
            assert tenant.quota is None or sum(used[tenant.name, kind] for kind in KINDS) <= tenant.quota
            assert all(used[tenant.name, kind] <= most for kind, most in tenant.most.items())


@few
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=4), st.integers(0, 3))
def test_everybody_soon_holds_what_it_is_guaranteed_and_wants(rows: list[tuple[int, int]], more: int) -> None:
    teams = [TenantState(f"t{at}", 1.0 + at, guarantee={"v100": float(sure)}) for at, (sure, _) in enumerate(rows)]
    jobs = [one for at, (_, count) in enumerate(rows) for one in many(f"t{at}", count)]
    hog = job("hog", "rich", (1, 20))
    devices = more + sum(sure for sure, _ in rows)
    lent = later(ClusterState(1000.0, cluster(0, devices), [*teams, RICH], [hog]), 3)
    found = held(later(replace(lent, jobs=[*lent.jobs, *jobs]), 10))
    assert all(found[f"t{at}"] >= min(sure, count) for at, (sure, count) in enumerate(rows))
