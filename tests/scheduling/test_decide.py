"""What the scheduler does in the situations that people ask about, one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.cluster import DEVICE, Node, NodeState
from fairlead.scheduling import decide
from fairlead.scheduling.mentioned_jobs import MentionedJob
from fairlead.scheduling.state import ClusterState, Decision, Hold, Preempt, Resize, Start, TenantState

from .clusters import apply, by_job, calls, changes, job, nodes, state, tenants, used_by_tenant

# ---------------------------------------------------------------- starting


def test_a_job_starts_at_once_on_an_empty_cluster_as_large_as_it_may_be() -> None:
    start = by_job(decide(state([job("j", workers=(1, 3))])))["j"]
    assert isinstance(start, Start) and len(start.seats) == 3
    assert "starts with 3 workers on node-0, node-1 and node-2" in start.reason.text


def test_a_gang_starts_whole_or_not_at_all() -> None:
    busy = job("busy", seats=("node-0", "node-1"), workers=(2, 2), since_s=90.0)
    decided = by_job(decide(state([busy, job("gang", workers=(3, 3))])))
    assert isinstance(decided["gang"], Hold)
    assert "needs 3 devices, 2 free" in decided["gang"].reason.text


def test_three_tenants_of_weights_3_2_1_share_four_nodes() -> None:
    jobs = [job(f"{t}-{i}", t) for t in "abc" for i in range(4)]
    after = apply(state(jobs, tenants=tenants(a=3, b=2, c=1)), decide(state(jobs, tenants=tenants(a=3, b=2, c=1))))
    assert used_by_tenant(after) == {"a": 2, "b": 1, "c": 1}


def test_unused_share_is_lent() -> None:
    jobs = [job(f"a-{i}", "a") for i in range(4)]
    assert len(changes(decide(state(jobs, tenants=tenants(a=1, b=9))))) == 4


def test_a_quota_is_never_exceeded_and_named_as_the_reason() -> None:
    owner = [TenantState("a", quota=2)]
    decided = by_job(decide(state([job(f"a-{i}", "a", workers=(1, 4)) for i in range(3)], tenants=owner)))
    assert sum(len(d.seats) for d in decided.values() if isinstance(d, Start)) == 2
    held = [d for d in decided.values() if isinstance(d, Hold)]
    assert [d.reason.code for d in held] == ["quota"] and "quota of 2" in held[0].reason.text


def test_priority_orders_the_jobs_of_a_tenant() -> None:
    jobs = [job("low"), job("high", priority=10, submitted_s=50.0)]
    decided = by_job(decide(state(jobs, nodes=nodes(1))))
    assert isinstance(decided["high"], Start) and isinstance(decided["low"], Hold)
    assert decided["low"].ahead == ()


def test_priority_gains_nothing_on_other_tenants() -> None:
    for owner, other in ("ab", "ba"):
        jobs = [job("pushy", owner), job("modest", other)]
        plain = by_job(decide(state(jobs, nodes=nodes(1))))
        jobs[0] = replace(jobs[0], priority=1000)
        pushing = by_job(decide(state(jobs, nodes=nodes(1))))
        assert {name: type(one) for name, one in pushing.items()} == {name: type(one) for name, one in plain.items()}


def test_waiting_outweighs_priority_in_the_end() -> None:
    jobs = [job("old", submitted_s=0.0), job("new", priority=10, submitted_s=900.0)]
    assert isinstance(by_job(decide(state(jobs, nodes=nodes(1), now_s=901.0)))["old"], Start)


@pytest.mark.parametrize("promise", [{"start_by_s": 130.0}, {"finish_by_s": 150.0}])
def test_a_promise_about_to_be_broken_comes_first(promise: dict[str, float]) -> None:
    jobs = [job("plain", submitted_s=0.0), job("promised", submitted_s=90.0, **promise)]
    assert isinstance(by_job(decide(state(jobs, nodes=nodes(1))))["promised"], Start)


@pytest.mark.parametrize(("deadline_s", "stops_it"), [(104.0, False), (140.0, True)])
def test_a_deadline_that_cannot_be_kept_any_more_stops_nobody(deadline_s: float, stops_it: bool) -> None:
    """At 100 s, with 30 s to go; the other one has run for a while and would be taken from for a promise."""
    other = job("other", submitted_s=0.0, seats=("node-0",), since_s=0.0)
    promised = job("promised", submitted_s=99.0, finish_by_s=deadline_s, facts={"takes_s": 30.0})
    decided = by_job(decide(state([other, promised], nodes=nodes(1))))
    assert isinstance(decided.get("other"), Preempt) is stops_it


# ---------------------------------------------------------------- placing


def test_a_gang_sits_on_as_few_nodes_as_possible() -> None:
    pool = [Node(f"node-{i}", {DEVICE: size}) for i, size in enumerate([4, 2, 3])]
    start = by_job(decide(state([job("j", workers=(3, 3))], nodes=pool)))["j"]
    assert start.seats == ("node-2",) * 3  # the fullest that takes all


def test_a_gang_sits_on_nodes_of_like_speed() -> None:
    pool = [Node(f"node-{i}", {DEVICE: 1}, speed=speed) for i, speed in enumerate([0.3, 1.0, 0.3, 1.0])]
    start = by_job(decide(state([job("j", workers=(2, 2))], nodes=pool)))["j"]
    assert start.seats == ("node-1", "node-3")


def test_a_worker_goes_only_where_all_its_resources_are() -> None:
    pool = [Node("small", {DEVICE: 4, "memory": 1e9}), Node("large", {DEVICE: 4, "memory": 9e9})]
    decided = by_job(decide(state([job(f"j{i}", demand={"memory": 3e9}) for i in range(4)], nodes=pool)))
    assert [d.seats for d in decided.values() if isinstance(d, Start)] == [("large",)] * 3
    assert "with 3 GB memory each, 0 free" in decided["j3"].reason.text


def test_a_device_type_is_kept_to() -> None:
    pool = [Node("c", {DEVICE: 2}), Node("g", {DEVICE: 1}, device_type="a100")]
    decided = by_job(decide(state([job(f"j{i}", device_type="a100") for i in range(2)], nodes=pool)))
    assert decided["j0"].seats == ("g",)
    assert "needs 1 device of type a100, 0 free" in decided["j1"].reason.text


@pytest.mark.parametrize("away", [NodeState.CORDONED, NodeState.DRAINING, NodeState.LOST])
def test_nothing_new_goes_to_a_node_out_of_service(away: NodeState) -> None:
    pool = [*nodes(1), Node("node-1", {DEVICE: 1}, state=away)]
    hold = by_job(decide(state([job("j", workers=(2, 2))], nodes=pool)))["j"]
    assert isinstance(hold, Hold) and hold.reason.code == "no-such-room"


# ---------------------------------------------------------------- growing and shrinking


def test_a_running_gang_grows_into_free_devices() -> None:
    grown = by_job(decide(state([job("j", workers=(1, 3), seats=("node-2",))])))["j"]
    assert isinstance(grown, Resize) and grown.seats[0] == "node-2" and len(grown.seats) == 3
    assert "grows from 1 to 3 workers" in grown.reason.text


def test_a_young_generation_grows_into_free_devices_but_gives_none_to_its_siblings() -> None:
    """A resize pauses a training for a moment: only gangs that would get less are left alone while they are young."""
    grown = by_job(decide(state([job("j", workers=(1, 3), seats=("node-2",), since_s=97.0)])))["j"]
    assert isinstance(grown, Resize) and len(grown.seats) == 3
    wide = job("wide", workers=(1, 4), seats=tuple(f"node-{i}" for i in range(4)), since_s=97.0)
    assert changes(decide(state([wide, job("sibling")]))) == []
    assert len(changes(decide(state([replace(wide, since_s=0.0), job("sibling")])))) == 1


def test_a_running_gang_that_cannot_resize_keeps_its_size() -> None:
    assert changes(decide(state([job("j", workers=(1, 3), seats=("node-2",), elastic=False)]))) == []


@pytest.mark.parametrize(
    ("speeds", "size"),
    [({1: 100.0, 2: 190.0}, 4), ({1: 100.0, 2: 80.0}, None), ({1: 100.0, 3: 90.0}, 2), ({}, 4)],
)
def test_nobody_grows_into_what_was_measured_to_be_slower(speeds: dict[int, float], size: int | None) -> None:
    decision = by_job(decide(state([job("j", workers=(1, 4), seats=("node-0",), speeds=speeds)]))).get("j")
    assert (len(decision.seats) if isinstance(decision, Resize) else None) == size


def test_a_gang_that_was_faster_when_smaller_goes_back() -> None:
    slow = job("j", workers=(1, 4), seats=("node-0", "node-1"), speeds={1: 100.0, 2: 60.0})
    before = state([slow])
    decision = by_job(decide(before))["j"]
    assert isinstance(decision, Resize) and len(decision.seats) == 1 and decision.reason.code == "slower"
    assert changes(decide(apply(before, decide(before), wait_s=60.0))) == []


def test_growing_must_be_worth_the_restart() -> None:
    nearly_done = job("j", workers=(1, 4), seats=("node-0",), speeds={1: 100.0}, remaining_samples=150.0)
    assert changes(decide(state([nearly_done]))) == []
    assert changes(decide(state([replace(nearly_done, remaining_samples=1e6)])))


def test_spare_devices_go_to_the_tenant_furthest_below_its_due() -> None:
    jobs = [job("a", "a", (1, 8), seats=("node-0",)), job("b", "b", (1, 8), seats=("node-0",))]
    before = state(jobs, nodes=nodes(1, devices=8), tenants=tenants(a=3, b=1))
    assert used_by_tenant(apply(before, decide(before))) == {"a": 6, "b": 2}


def test_elastic_gangs_shrink_for_a_newcomer_of_another_tenant() -> None:
    before = state([job("wide", "a", (1, 4), seats=("node-0", "node-1", "node-2", "node-3")), job("new", "b")])
    decided = by_job(decide(before))
    assert isinstance(decided["wide"], Resize) and len(decided["wide"].seats) == 3
    assert decided["wide"].reason.code == "make-room"
    assert "gives 1 device to waiting job new" in decided["wide"].reason.text
    assert decided["new"].reason.code == "making-room"
    begins = by_job(decide(apply(before, decide(before))))["new"]
    assert isinstance(begins, Start) and begins.reason.code == "room-made"
    assert begins.reason.text == "starts with 1 worker on node-0: job wide of tenant a made room for it"


def test_a_gang_that_waits_for_several_others_to_leave_names_them_all_when_it_starts() -> None:
    before = state([*full_of("a")[:3], job("wide", "b", (2, 2), priority=0)], nodes=nodes(3), tenants=tenants(a=1, b=2))
    first = decide(before)
    leaving = [one.job for one in changes(first) if isinstance(one, Preempt)]
    assert len(leaving) == 2
    one_left = apply(before, replace(first, decisions=tuple(d for d in first.decisions if d.job != leaving[1])))
    jobs = [replace(one, leaving=one.seats, frozen=True) if one.id == leaving[1] else one for one in one_left.jobs]
    second = decide(replace(one_left, jobs=jobs))
    assert by_job(second)["wide"].reason.facts["victims"] == [MentionedJob(leaving[1], "a")]
    left = [replace(one, seats=(), leaving=(), frozen=False) if one.id == leaving[1] else one for one in jobs]
    begins = by_job(decide(replace(one_left, jobs=left, memory=second.memory)))["wide"]
    assert isinstance(begins, Start)
    assert all(f"job {name} of tenant a" in begins.reason.text for name in leaving)


def test_elastic_gangs_shrink_for_a_sibling_that_waits() -> None:
    before = state([job("wide", "a", (1, 4), seats=("node-0", "node-1", "node-2", "node-3")), job("new", "a")])
    assert len(by_job(decide(before))["wide"].seats) == 3


def test_a_gang_of_a_tenant_above_its_share_shrinks_so_that_anothers_grows() -> None:
    seats = ("node-0", "node-1", "node-2")
    now = state([job("wide", "a", (1, 4), seats=seats), job("narrow", "b", (1, 4), seats=("node-3",))])
    for _ in range(3):
        now = apply(now, decide(now), wait_s=6.0)
    assert used_by_tenant(now) == {"a": 2, "b": 2}


# ---------------------------------------------------------------- preempting


def full_of(tenant: str, **fields: object) -> list:  # type: ignore[type-arg]
    return [job(f"{tenant}-{i}", tenant, seats=(f"node-{i}",), **fields) for i in range(4)]


def test_borrowed_devices_are_reclaimed_from_the_cheapest_victims() -> None:
    running = full_of("a")
    running[2] = replace(running[2], restart_cost_s=0.1)
    decided = by_job(decide(state([*running, job("new", "b")])))
    assert [d.job for d in decided.values() if isinstance(d, Preempt)] == ["a-2"]
    assert "entitled" in decided["a-2"].reason.text


def test_no_more_is_reclaimed_than_the_entitlement() -> None:
    now = state([*full_of("a"), *(job(f"b-{i}", "b") for i in range(4))])
    for _ in range(8):
        now = apply(now, decide(now), wait_s=1.0)
    assert used_by_tenant(now) == {"a": 2, "b": 2}


def test_a_gang_larger_than_its_tenants_share_does_not_keep_the_whole_cluster_from_others() -> None:
    only = job("only", "a", (4, 4), seats=("node-0", "node-1", "node-2", "node-3"))
    now, given_up = state([only, job("new", "b")]), list[Decision]()
    while not given_up:
        assert now.now_s < 220.0, "turns last a minute or two where a change costs a second"
        round_ = decide(now)
        given_up, now = changes(round_), apply(now, round_, wait_s=5.0)
    assert isinstance(given_up[0], Preempt) and "tenant b, whose tenant uses 0 of the 1 it is entitled to" in (
        given_up[0].reason.text
    )


def test_a_higher_priority_preempts_a_lower_one_of_the_same_tenant_only() -> None:
    decided = by_job(decide(state([*full_of("a"), job("high", "a", priority=5)])))
    assert len([d for d in decided.values() if isinstance(d, Preempt)]) == 1
    young = full_of("a", priority=5, since_s=90.0)
    same = by_job(decide(state([*young, job("equal", "a", priority=5)])))
    assert [d for d in same.values() if isinstance(d, Preempt)] == []


def test_the_job_for_which_room_was_made_gets_it_even_if_others_waited_longer() -> None:
    waiting = [job(f"old-{i}", "a", submitted_s=-5000.0) for i in range(3)]
    now = state([*full_of("a"), *waiting, job("high", "a", priority=5, submitted_s=99.0)])
    now = apply(now, decide(now), wait_s=1.0)
    assert isinstance(by_job(decide(now))["high"], Start)


# ---------------------------------------------------------------- mending and draining


def test_survivors_go_on_right_away() -> None:
    hurt = job("j", workers=(1, 4), seats=("node-0", "node-1"), broken=True)
    decision = by_job(decide(state([hurt])))["j"]
    assert isinstance(decision, Resize) and decision.seats == ("node-0", "node-1")
    assert decision.reason.code == "worker-lost"


def test_too_few_survivors_are_joined_by_newcomers_or_go_back_to_the_queue() -> None:
    hurt = job("j", workers=(3, 3), seats=("node-0", "node-1"), broken=True)
    decision = by_job(decide(state([hurt])))["j"]
    assert isinstance(decision, Resize) and len(decision.seats) == 3 and decision.seats[:2] == ("node-0", "node-1")
    crowded = [hurt, job("x", "b", (2, 2), seats=("node-2", "node-3"))]
    assert isinstance(by_job(decide(state(crowded)))["j"], Preempt)


def test_a_gang_that_lost_all_its_workers_starts_again_elsewhere() -> None:
    decision = by_job(decide(state([job("j", workers=(2, 4), seats=(), broken=True)])))["j"]
    assert isinstance(decision, Resize) and len(decision.seats) == 2


def test_seats_on_a_lost_node_count_as_lost_workers() -> None:
    pool = [*nodes(3), Node("gone", {DEVICE: 1}, state=NodeState.LOST)]
    decision = by_job(decide(state([job("j", workers=(1, 2), seats=("node-0", "gone"))], nodes=pool)))["j"]
    assert isinstance(decision, Resize) and decision.seats == ("node-0",)


def test_a_job_whose_node_was_lost_comes_back_at_the_cost_of_who_has_more_than_its_share() -> None:
    """Weights 3:2:1 on four devices, one device gone: the tenant of weight 2 lost its only worker."""
    pool = [*nodes(3), Node("node-3", {DEVICE: 1}, state=NodeState.LOST)]
    jobs = [
        job("a", "a", (1, 4), seats=("node-0", "node-1")),
        job("b", "b", (1, 4), seats=(), broken=True),
        job("c", "c", (1, 4), seats=("node-2",)),
    ]
    now = state(jobs, nodes=pool, tenants=tenants(a=3, b=2, c=1))
    for _ in range(4):
        now = apply(now, decide(now), wait_s=1.0)
    assert used_by_tenant(now) == {"a": 1, "b": 1, "c": 1}


def drained(*jobs: object) -> dict:  # type: ignore[type-arg]
    pool = [*nodes(3), Node("leaving", {DEVICE: 2}, state=NodeState.DRAINING)]
    return by_job(decide(state(list(jobs), nodes=pool)))  # type: ignore[arg-type]


def test_a_drained_node_is_left_whatever_the_kind_of_job() -> None:
    for elastic in (True, False):
        moved = drained(job("j", workers=(2, 2), seats=("node-0", "leaving"), elastic=elastic))["j"]
        assert isinstance(moved, Resize) and len(moved.seats) == 2 and "leaving" not in moved.seats
        assert moved.reason.code == "node-draining"


def test_a_drained_job_shrinks_if_there_is_too_little_room_and_waits_if_there_is_none() -> None:
    full = job("full", "b", (3, 3), seats=("node-0", "node-1", "node-2"))
    two = job("two", "b", (2, 2), seats=("node-0", "node-1"))
    elastic = job("j", workers=(1, 2), seats=("leaving", "leaving"))
    assert len(drained(two, elastic)["j"].seats) == 1
    assert isinstance(drained(full, elastic)["j"], Preempt)


def test_a_cordoned_node_keeps_what_runs() -> None:
    pool = [*nodes(1), Node("node-1", {DEVICE: 1}, state=NodeState.CORDONED)]
    assert changes(decide(state([job("j", seats=("node-1",))], nodes=pool))) == []


# ---------------------------------------------------------------- waiting


def test_a_forecast_of_the_start_comes_from_what_runs() -> None:
    everywhere = tuple(f"node-{i}" for i in range(4))
    ends = job("ends", "a", (4, 4), seats=everywhere, speeds={4: 10.0}, remaining_samples=300.0)
    decided = by_job(decide(state([ends, job("next", "a"), job("later", "a", (4, 4), submitted_s=1.0)])))
    assert decided["next"].expected_start_s == 130.0
    assert decided["later"].expected_start_s is None  # nobody knows how long "next" runs
    assert decided["later"].ahead == ("next",) and "behind 1 job" in decided["later"].reason.text


def test_free_devices_that_were_given_to_a_gang_are_kept_until_it_has_the_others_too() -> None:
    """The gang of b needs three devices: two are free, and a sits on the other two until it has left one."""
    wide = job("wide", "a", (1, 2), seats=("node-0", "node-1"), since_s=90.0)
    now = state([wide, job("gang", "b", (3, 3)), job("small", "a", submitted_s=99.0)], tenants=tenants(a=1, b=3))
    round_ = decide(now)
    decided = by_job(round_)
    assert isinstance(decided["wide"], Resize) and isinstance(decided["small"], Hold)
    assert [(kept.job, len(kept.nodes)) for kept in round_.reservations] == [("gang", 3)]
    after = replace(now, jobs=[replace(now.jobs[0], frozen=True, leaving=("node-1",)), *now.jobs[1:]])
    later = decide(replace(after, now_s=101.0, memory=round_.memory))
    assert changes(later) == [] and by_job(later)["gang"].reason.code == "making-room"
    assert by_job(later)["small"].reason.code == "held-for-others"


def test_what_is_held_for_a_gang_lets_it_start_once_it_suffices_even_beyond_its_tenants_share() -> None:
    """Tenant b is entitled to a device, but only the one in use has the memory it needs: nobody claims the rest."""
    pool = [
        Node("large", {DEVICE: 1, "memory": 9e9}),
        *(Node(f"small-{i}", {DEVICE: 1, "memory": 1e9}) for i in range(3)),
    ]
    other = job("other", "b", demand={"memory": 5e9}, submitted_s=99.0)
    run = job("run", seats=("large",), starts_over=True)  # else it would move
    decided = by_job(decide(state([run, job("gang", workers=(3, 3)), other], nodes=pool)))
    assert isinstance(decided["gang"], Start) and decided["gang"].reason.code == "borrowed"
    assert "with 5 GB memory each, 0 free" in decided["other"].reason.text


def test_the_work_of_a_round_grows_no_faster_than_the_queue() -> None:
    def queue_of(count: int) -> ClusterState:
        sizes = [(1 + i % 2, 4) for i in range(count)]
        jobs = [
            job(f"j{i}", "abc"[i % 3], size, demand={"cpu": 0.5}, submitted_s=i / 10) for i, size in enumerate(sizes)
        ]
        return state(jobs, tenants=tenants(a=3, b=2, c=1))

    short, long = queue_of(500), queue_of(1000)
    assert calls(lambda: decide(long)) < 2.5 * calls(lambda: decide(short))
