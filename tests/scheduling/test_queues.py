"""Queues above and below each other: what each may claim, what is never exceeded, denied or left idle."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.market import Market
from fairlead.scheduling.queues import Demand, Tree, charge, divide_capacity, people_with_jobs
from fairlead.scheduling.shares import entitlements
from fairlead.scheduling.state import ClusterState, JobState, Resize, Round, Start, TenantState

from .clusters import few, several

KINDS = ("k80", "v100")


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[TenantState], dict[str, float]]:
    """Up to nine tenants on up to three levels, with weights, quotas and guarantees, and what their jobs want."""
    made: list[TenantState] = []
    for at in range(draw(st.integers(1, 9))):
        parent = draw(st.sampled_from([None, None, *(one.name for one in made)]))
        guarantee = draw(st.sampled_from([{}, {}, {"k80": 1.0}, {"k80": 2.0, "v100": 1.0}]))
        quota = draw(st.sampled_from([None, None, 3, 8]))
        weight = draw(st.sampled_from([0.5, 1.0, 2.0, 5.0]))
        made.append(TenantState(f"t{at}", weight, quota, parent=parent, guarantee=guarantee))
    return made, {one.name: float(draw(st.integers(0, 12))) for one in made}


def whole(forest: tuple[list[TenantState], dict[str, float]], capacity: float) -> tuple[Tree, dict[str, float]]:
    tenants, demand = forest
    tree = Tree.of(tenants, {name: ("",) for name, amount in demand.items() if amount > 0})
    return tree, divide_capacity(tree, Demand({tree.own(name): amount for name, amount in demand.items()}), capacity)


def caps(tree: Tree, demand: dict[str, float]) -> dict[str, float]:
    """As much as each queue could use at all."""
    found = dict.fromkeys(tree.queues, 0.0)
    for name, amount in demand.items():
        found[tree.own(name)] += amount
    for name in tree.upwards():
        if (quota := tree.queues[name].quota) is not None:
            found[name] = min(found[name], quota)
        if (parent := tree.above[name]) is not None:
            found[parent] += found[name]
    return found


@several
@given(forests(), st.integers(0, 40))
def test_nothing_is_idle_while_it_is_wanted_and_nobody_has_more_than_it_may_use(forest: tuple, capacity: int) -> None:  # type: ignore[type-arg]
    tree, given_ = whole(forest, capacity)
    most = caps(tree, forest[1])
    assert all(-1e-9 <= given_[name] <= most[name] + 1e-6 for name in tree.queues)
    assert sum(given_[name] for name in tree.below[None]) == pytest.approx(
        min(capacity, sum(most[name] for name in tree.below[None])), abs=1e-6
    )
    for name in tree.queues:  # what a queue may claim is divided among those below it, all of it
        if name in tree.below:
            assert sum(given_[child] for child in tree.below[name]) == pytest.approx(given_[name], abs=1e-6)
    own = entitlements(forest[0], forest[1], capacity)
    assert sum(own.values()) == pytest.approx(sum(given_[name] for name in tree.below[None]), abs=1e-6)


@several
@given(forests(), st.integers(0, 40))
def test_siblings_who_want_more_have_as_much_for_their_weight_as_any(forest: tuple, capacity: int) -> None:  # type: ignore[type-arg]
    tree, given_ = whole(([replace(one, guarantee={}) for one in forest[0]], forest[1]), capacity)
    most = caps(tree, forest[1])
    for siblings in tree.below.values():
        per_weight = {name: given_[name] / tree.queues[name].weight for name in siblings}
        best = max(per_weight.values())
        assert all(given_[name] >= most[name] - 1e-6 or per_weight[name] >= best - 1e-6 for name in siblings)


@several
@given(forests(), st.integers(0, 40))
def test_a_guarantee_is_kept_when_it_is_wanted_and_there(forest: tuple, capacity: int) -> None:  # type: ignore[type-arg]
    tree, given_ = whole(forest, capacity)
    most = caps(tree, forest[1])
    top = tree.below[None]
    if any(one.parent for one in forest[0]) or sum(sum(tree.queues[n].guarantee.values()) for n in top) > capacity:
        return  # what is promised to those below a queue, or beyond what is there, is held together by the API
    for name in top:
        assert given_[name] >= min(sum(tree.queues[name].guarantee.values()), most[name]) - 1e-6


@several
@given(forests(), st.integers(0, 40), st.integers(0, 8))
def test_more_devices_or_more_demand_never_lower_what_one_may_claim(forest: tuple, capacity: int, at: int) -> None:  # type: ignore[type-arg]
    tenants, demand = forest
    before, after = entitlements(tenants, demand, capacity), entitlements(tenants, demand, capacity + 3)
    assert all(after[name] >= before[name] - 1e-6 for name in before)
    name = tenants[at % len(tenants)].name
    if demand[name] > 0:
        eager = entitlements(tenants, {**demand, name: demand[name] + 2}, capacity)
        assert eager[name] >= before[name] - 1e-6


@several
@given(forests(), st.integers(0, 40), st.randoms(use_true_random=False))
def test_the_order_of_tenants_does_not_matter(forest: tuple, capacity: int, rng) -> None:  # type: ignore[type-arg,no-untyped-def]
    tenants, demand = forest
    shuffled = list(tenants)
    rng.shuffle(shuffled)
    assert entitlements(tenants, demand, capacity) == entitlements(shuffled, demand, capacity)


@several
@given(
    st.lists(st.tuples(st.sampled_from([0.1, 1.0, 3.0]), st.none() | st.integers(1, 6), st.integers(0, 20))),
    st.integers(0, 40),
)
def test_tenants_side_by_side_are_shared_out_as_they_always_were(rows: list, capacity: int) -> None:  # type: ignore[type-arg]
    tenants = [TenantState(f"t{at}", weight, quota) for at, (weight, quota, _) in enumerate(rows)]
    demand = {f"t{at}": float(wanted) for at, (_, _, wanted) in enumerate(rows)}
    caps = {t.name: min(demand[t.name], float(t.quota)) if t.quota is not None else demand[t.name] for t in tenants}
    weights = {t.name: t.weight for t in tenants}
    left, weight_left, plain = float(capacity), sum(weights[name] for name in sorted(caps)), {}
    for name in sorted(caps, key=lambda name: (caps[name] / weights[name], name)):
        plain[name] = min(caps[name], left * weights[name] / weight_left)
        left, weight_left = left - plain[name], weight_left - weights[name]
    assert entitlements(tenants, demand, capacity) == plain  # to the last bit


TEAMS = [
    TenantState("vision", 2.0), TenantState("text", 1.0),
    TenantState("alice", 3.0, parent="vision"), TenantState("bob", 1.0, parent="vision"),
]  # fmt: skip


def test_weights_count_among_siblings_and_not_across_levels() -> None:
    found = entitlements(TEAMS, {"alice": 99, "bob": 99, "text": 99}, 12)
    assert found == {"alice": 6.0, "bob": 2.0, "text": 4.0, "vision": 0.0}


def test_what_one_leaves_goes_to_its_siblings_first_and_then_upwards() -> None:
    assert entitlements(TEAMS, {"alice": 1, "bob": 99, "text": 99}, 12) == {
        "alice": 1.0, "bob": 7.0, "text": 4.0, "vision": 0.0,
    }  # fmt: skip
    assert entitlements(TEAMS, {"alice": 1, "bob": 2, "text": 99}, 12)["text"] == 9.0


def test_the_own_work_of_a_tenant_with_teams_counts_like_a_team_of_weight_one() -> None:
    found = entitlements(TEAMS, {"vision": 99, "alice": 99, "bob": 99, "text": 99}, 15)
    assert found == {"vision": 2.0, "alice": 6.0, "bob": 2.0, "text": 5.0}


def test_a_queue_below_itself_or_below_nobody_known_stands_at_the_top() -> None:
    loop = [TenantState("a", parent="b"), TenantState("b", parent="a"), TenantState("c", parent="gone")]
    assert entitlements(loop, {"a": 9, "b": 9, "c": 9}, 6) == {"a": 2.0, "b": 2.0, "c": 2.0}


def test_a_limit_by_type_bounds_what_can_be_used_of_it() -> None:
    teams = [TenantState("a", most={"v100": 2.0}), TenantState("b")]
    tree = Tree.of(teams)
    demand = Demand({"a": 9.0, "b": 9.0}, {"a": {"v100": 8.0, "": 1.0}, "b": {"": 9.0}}, {"v100": 8.0, "k80": 2.0})
    assert divide_capacity(tree, demand, 10.0) == {"a": 3.0, "b": 7.0}


def test_people_of_a_tenant_stand_below_it_where_several_have_jobs() -> None:
    jobs = [JobState("1", "a", 0.0, person="eve"), JobState("2", "a", 0.0, person="ada"), JobState("3", "b", 0.0)]
    tree = Tree.of([TenantState("a"), TenantState("b")], people_with_jobs(jobs))
    assert list(tree.queues) == ["a", "a/ada", "a/eve", "b"] and tree.leaf("a", "eve") == "a/eve"
    assert tree.leaf("a", "new") == "a" and tree.leaf("b", "new") == "b"  # who was not counted
    assert tree.tenants == {"a", "b"} and Tree.of([TenantState("a")], people_with_jobs(jobs[:1])).flat


def test_who_takes_more_memory_than_goes_with_a_device_is_charged_for_it() -> None:
    whole_ = {"cpu": 80.0, "memory": 800e9, DEVICE: 10.0}
    assert charge({}, whole_) == charge({"memory": 80e9}, whole_) == charge({"cpu": 1.0}, whole_) == 1.0
    assert charge({"memory": 240e9, "cpu": 16.0}, whole_) == 3.0


# ---------------------------------------------------------------- in the market


def held(state: ClusterState, made: Round) -> dict[str, tuple[str, ...]]:
    seats = {job.id: job.seats for job in state.jobs}
    for decision in made.decisions:
        seats[decision.job] = decision.seats if isinstance(decision, Start | Resize) else ()
    return seats


def carried_out(state: ClusterState, rounds: int) -> ClusterState:
    for _ in range(rounds):
        made = Market()(state)
        seats = held(state, made)
        state = replace(state, now_s=state.now_s + 60.0, memory=made.memory,
                        jobs=[replace(job, seats=seats[job.id]) for job in state.jobs])  # fmt: skip
    return state


def by(state: ClusterState, key: str) -> Counter[str]:
    return Counter(getattr(job, key) for job in state.jobs for _ in job.seats)


def singles(tenant: str, count: int, **fields: object) -> list[JobState]:
    return [JobState(f"{tenant}{fields.get('person', '')}-{at:02d}", tenant, 0.0, **fields) for at in range(count)]  # type: ignore[arg-type]


def cluster(k80: int, v100: int) -> list[Node]:
    memory = {"cpu": 4.0, "memory": 8e9, DEVICE: 1.0}
    return [Node(f"k{at}", memory, "k80") for at in range(k80)] + [Node(f"v{at}", memory, "v100") for at in range(v100)]


@st.composite
def markets(draw: st.DrawFn) -> ClusterState:
    tenants, _ = draw(forests())
    limits = st.sampled_from([{}, {}, {"v100": 1.0}, {"k80": 2.0, "v100": 3.0}])
    tenants = [replace(one, most=draw(limits)) for one in tenants]
    jobs = [
        JobState(
            f"j{at}", draw(st.sampled_from(tenants)).name, draw(st.floats(0.0, 900.0)),
            least := draw(st.sampled_from([1, 1, 2])), least * draw(st.sampled_from([1, 2, 4])), elastic=True,
            demand=draw(st.sampled_from([{}, {"memory": 2e9}, {"memory": 8e9}])),
            device_type=draw(st.sampled_from([None, None, *KINDS])), person=draw(st.sampled_from(["", "ada", "eve"])),
            finish_by_s=draw(st.sampled_from([None, None, 4_000.0])), work_left=draw(st.floats(10.0, 1e4)),
        )
        for at in range(draw(st.integers(0, 14)))
    ]  # fmt: skip
    return ClusterState(1_000.0, cluster(draw(st.integers(0, 6)), draw(st.integers(0, 6))), tenants, jobs, round_s=60.0)


def test_the_tree_of_the_market() -> None:
    state = ClusterState(0.0, cluster(0, 12), TEAMS, singles("alice", 20) + singles("bob", 20) + singles("text", 20))
    assert by(carried_out(state, 1), "tenant") == {"alice": 6, "bob": 2, "text": 4}
    assert dict(Market()(state).entitlements) == {"alice": 6.0, "bob": 2.0, "text": 4.0, "vision": 8.0}


@few
@given(markets())
def test_no_queue_holds_more_than_its_quota_or_its_most_of_a_type(state: ClusterState) -> None:
    after = carried_out(state, 2)
    tree, kinds = Tree.of(state.tenants), {node.name: node.device_type for node in state.nodes}
    used: Counter[tuple[str, str]] = Counter()
    for job in after.jobs:
        for queue in tree.path(job.tenant):
            used.update((queue, kinds[seat]) for seat in job.seats)
    for tenant in state.tenants:
        assert tenant.quota is None or sum(used[tenant.name, kind] for kind in KINDS) <= tenant.quota
        assert all(used[tenant.name, kind] <= most for kind, most in tenant.most.items())
    nodes = Counter(seat for job in after.jobs for seat in job.seats)
    assert all(count <= 1 for count in nodes.values())


@few
@given(markets(), st.randoms(use_true_random=False))
def test_the_order_of_jobs_and_tenants_does_not_matter_to_the_market(state: ClusterState, rng) -> None:  # type: ignore[no-untyped-def]
    jobs, tenants = list(state.jobs), list(state.tenants)
    rng.shuffle(jobs)
    rng.shuffle(tenants)
    mixed = replace(state, jobs=jobs, tenants=tenants)
    assert held(state, Market()(state)) == held(mixed, Market()(mixed))


@few
@given(markets())
def test_no_device_is_idle_while_somebody_may_use_it(state: ClusterState) -> None:
    after = carried_out(replace(state, tenants=[replace(one, quota=None, most={}) for one in state.tenants]), 1)
    taken = Counter(seat for job in after.jobs for seat in job.seats)
    idle = Counter(node.device_type for node in state.nodes if not taken[node.name])
    waiting = [job for job in after.jobs if not job.seats]
    for job in waiting:
        assert all(idle[kind] < job.min_workers for kind in KINDS if job.device_type in (None, kind))


@few
@given(
    st.lists(st.tuples(*[st.integers(0, 2)] * 2, *[st.integers(0, 4)] * 2), min_size=1, max_size=4),
    st.integers(0, 3), st.integers(0, 3),
)  # fmt: skip
def test_everybody_holds_what_it_is_guaranteed_and_wants(rows: list, k80: int, v100: int) -> None:  # type: ignore[type-arg]
    teams = [TenantState(f"t{at}", 1.0 + at, guarantee={"k80": row[0], "v100": row[1]}) for at, row in enumerate(rows)]
    jobs = [
        job
        for at, row in enumerate(rows)
        for kind, count in zip(KINDS, row[2:], strict=True)
        for job in singles(f"t{at}", count, device_type=kind, person=kind)
    ]
    there = cluster(k80 + sum(row[0] for row in rows), v100 + sum(row[1] for row in rows))
    found = by(carried_out(ClusterState(0.0, there, teams, [replace(job, person="") for job in jobs]), 2), "id")
    for at, row in enumerate(rows):
        for kind, sure, wanted in zip(KINDS, row[:2], row[2:], strict=True):
            assert sum(found[job.id] for job in jobs if job.tenant == f"t{at}" and job.person == kind) >= min(
                sure, wanted
            )


def test_a_guarantee_is_taken_back_from_borrowers_at_once_and_never_from_who_is_guaranteed() -> None:
    teams = [TenantState("rich", 10.0), TenantState("sure", 0.1, guarantee={"v100": 2.0}), TenantState("late", 10.0)]
    lent = carried_out(ClusterState(0.0, cluster(0, 4), teams, singles("rich", 9, work_left=9e5)), 1)
    assert by(lent, "tenant") == {"rich": 4}
    back = carried_out(replace(lent, jobs=[*lent.jobs, *singles("sure", 5, work_left=9e5)]), 1)
    assert by(back, "tenant") == {"rich": 2, "sure": 2}
    urgent = singles("late", 9, work_left=1.0, finish_by_s=back.now_s + 100.0)
    later = carried_out(replace(back, jobs=[*back.jobs, *urgent]), 3)
    assert by(later, "tenant")["sure"] == 2


def test_a_guarantee_of_a_parent_is_for_whoever_below_it_wants_it() -> None:
    teams = [
        TenantState("vision", 0.1, guarantee={"v100": 3.0}), TenantState("text", 9.0),
        TenantState("alice", 1.0, parent="vision", guarantee={"v100": 1.0}), TenantState("bob", 1.0, parent="vision"),
    ]  # fmt: skip
    jobs = singles("text", 9, device_type="v100") + singles("bob", 9, device_type="v100")
    state = ClusterState(0.0, cluster(2, 4), teams, jobs)
    assert by(carried_out(state, 1), "tenant") == {"bob": 3, "text": 1}
    both = replace(state, jobs=[*jobs, *singles("alice", 9, device_type="v100")])
    found = by(carried_out(both, 1), "tenant")
    assert found["alice"] >= 1 and found["alice"] + found["bob"] == 3 and found["text"] == 1


def test_one_person_does_not_starve_a_colleague() -> None:
    many = singles("a", 30, person="ada", work_left=10.0)
    state = ClusterState(0.0, cluster(0, 8), [TenantState("a")], many + singles("a", 30, person="eve", work_left=9e4))
    assert by(carried_out(state, 1), "person") == {"ada": 4, "eve": 4}
    alone = ClusterState(0.0, cluster(0, 8), [TenantState("a")], many)
    assert by(carried_out(alone, 1), "person") == {"ada": 8}


def test_a_memory_hog_gets_fewer_devices_and_claims_that_it_needs_more_do_not_pay() -> None:
    def served(memory: float) -> Counter[str]:
        hogs = singles("hog", 20, demand={"memory": memory})
        return by(carried_out(ClusterState(0.0, [Node("n", {"cpu": 8.0, "memory": 64e9, DEVICE: 8.0})],
                                           [TenantState("hog"), TenantState("meek")], hogs + singles("meek", 4)), 1),
                  "tenant")  # fmt: skip

    assert served(8e9) == {"hog": 4, "meek": 4}
    entitled = entitlements([TenantState("hog"), TenantState("meek")], {"hog": 60.0, "meek": 4.0}, 8)
    assert entitled == {"hog": 4.0, "meek": 4.0}
    assert served(16e9)["hog"] <= 4 and served(16e9)["meek"] == 4
    assert served(32e9)["hog"] <= served(16e9)["hog"]
