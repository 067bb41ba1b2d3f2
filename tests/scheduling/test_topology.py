"""Distance counts: curves know levels, menus the narrowest domain that holds a gang, the market keeps gangs close."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node, level_between, nearby_devices
from fairlead.scheduling.curves import FAR, NEAR, SpeedCurve, widened
from fairlead.scheduling.explain import can_never_run
from fairlead.scheduling.market import Market
from fairlead.scheduling.market.capacity_arrays import could_ever_run
from fairlead.scheduling.market.colocation import Observation, learn_losses, slowdown
from fairlead.scheduling.market.limits import confine_offers
from fairlead.scheduling.market.offers import Pool, offers
from fairlead.scheduling.market.seat_requests import paces
from fairlead.scheduling.state import ClusterState, Hold, JobState, Round, Sleep, Start, Wake
from tests.scheduling.clusters import apply, by_job, few, overfull

SIZES = tuple(range(1, 17))


def node(zone: int, rack: int, number: int, **fields: object) -> Node:
    name = f"z{zone}r{rack}n{number}"
    fields.setdefault("capacity", {DEVICE: 4.0, "cpu": 8.0, "memory": 64e9})
    return Node(name, device_type="gpu", topology=(f"z{zone}", f"z{zone}r{rack}", name), **fields)  # type: ignore[arg-type]


def cluster(zones: int = 2, racks: int = 2, nodes: int = 2) -> list[Node]:
    return [node(z, r, n) for z in range(zones) for r in range(racks) for n in range(nodes)]


def curve(*over: float) -> SpeedCurve:
    """Linear on one node; over several nodes, racks and zones slower by these factors."""
    near = tuple(float(size) if size <= 4 else 0.0 for size in SIZES)
    return SpeedCurve(SIZES, {"gpu": (near, *(tuple(part * size for size in SIZES) for part in over))})


CLOSE = curve(0.9, 0.6, 0.3)


def job(name: str, size: int, **fields: object) -> JobState:
    fields.setdefault("curve", CLOSE)
    fields.setdefault("work_left", 1e4)
    return JobState(name, "t", 0.0, size, size, **fields)  # type: ignore[arg-type]


def decided(jobs: list[JobState], nodes: list[Node], **fields: object) -> tuple[ClusterState, Round]:
    state = ClusterState(100.0, nodes, [], jobs, round_s=60.0, at_once=True, **fields)  # type: ignore[arg-type]
    return state, Market()(state)


def test_how_far_apart_nodes_are() -> None:
    a, b, c, d = node(0, 0, 0), node(0, 0, 1), node(0, 1, 0), node(1, 0, 0)
    assert [level_between(some) for some in ([a], [a, a], [a, b], [a, c], [a, c, d])] == [0, 0, 1, 2, 3]
    flat = [Node("x", {DEVICE: 1.0}), Node("y", {DEVICE: 1.0})]
    assert level_between(flat) == 1


def test_a_curve_of_two_levels_reads_as_before_and_its_last_level_stands_for_all_that_is_wider() -> None:
    two = SpeedCurve((1, 2), {"gpu": ((1.0, 2.0), (0.0, 1.5))})
    assert [two.speed("gpu", 2, level) for level in (NEAR, FAR, 2, 5)] == [2.0, 1.5, 1.5, 1.5]
    assert two.fastest() == 2.0
    assert CLOSE.speed("gpu", 2, 2) == pytest.approx(1.2)


def test_bandwidth_says_what_wider_domains_cost() -> None:
    two = SpeedCurve((4,), {"gpu": ((4.0,), (3.0,))})
    wide = widened(two, (100.0, 10.0, 5.0))
    assert wide.speeds["gpu"][:2] == two.speeds["gpu"]
    exchanged = (1 / 3 - 1 / 4) / (1 / 10 - 1 / 100)
    assert wide.speed("gpu", 4, 2) == pytest.approx(1 / (1 / 3 + exchanged * (1 / 5 - 1 / 10)))
    alike = SpeedCurve((4,), {"gpu": ((4.0,), (4.0,))})
    assert widened(alike, (100.0, 10.0, 1.0)).speed("gpu", 4, 2) == pytest.approx(4.0)


def test_where_nobody_measured_it_a_gang_that_exchanges_a_lot_still_prefers_what_is_close() -> None:
    two = SpeedCurve((2, 8), {"gpu": ((2.0, 0.0), (1.2, 4.0))})
    assert list(paces(two, "gpu", 2, 4)) == sorted(paces(two, "gpu", 2, 4), reverse=True)
    near, rack, zone, _ = paces(two, "gpu", 8, 4)
    assert near == 0 < zone < rack
    assert paces(CLOSE, "gpu", 2, 4) == pytest.approx((1.0, 0.9, 0.6, 0.3))
    alike = SpeedCurve((2,), {"gpu": ((2.0,), (2.0,))})
    assert set(paces(alike, "gpu", 2, 4)) == {1.0}


def test_a_menu_tells_the_speed_in_the_narrowest_domain_that_holds_the_gang() -> None:
    pool = Pool.of(cluster())
    jobs = [job("j", 1, curve=CLOSE), job("r", 8), job("z", 16)]
    found = confine_offers(jobs, offers(jobs, pool), pool)
    assert found.speed.max(axis=1).tolist() == pytest.approx([1.0, 0.9 * 8, 0.6 * 16])
    hungry = [job("h", 4, demand={"cpu": 4.0}), job("no", 4, demand={"cpu": 16.0})]
    hungry.append(job("r", 16, only=frozenset({"z1r0"})))
    found = confine_offers(hungry, offers(hungry, pool), pool)
    assert found.speed.max(axis=1).tolist() == pytest.approx([0.9 * 4, 0.0, 0.0])
    assert [could_ever_run(one, pool.nodes) for one in hungry] == [True, False, False]


def test_a_job_that_may_run_nowhere_here_is_refused_at_once() -> None:
    nodes = cluster()
    assert can_never_run(job("j", 4, only=frozenset({"z0"})), nodes) is None
    nowhere = can_never_run(job("j", 1, only=frozenset({"mars"})), nodes)
    assert nowhere is not None
    assert (nowhere.field, nowhere.text) == ("placement.only", "no node is in mars")
    assert can_never_run(job("j", 9, only=frozenset({"z0r0"})), nodes) is not None


def test_the_market_seats_a_close_gang_in_one_rack() -> None:
    nodes = cluster()
    busy = [job(name, 1, seats=(name,), restart_cost_s=1.0) for name in ("z0r0n0", "z0r1n0", "z1r0n1")]
    _, made = decided([*busy, job("close", 8)], nodes)
    start = by_job(made)["close"]
    assert isinstance(start, Start)
    assert {name[:4] for name in start.seats} == {"z1r1"}


def test_residency_holds_and_a_zone_goes_to_whom_it_is_worth_most() -> None:
    nodes = cluster(zones=2, racks=1, nodes=1)
    eu = frozenset({"z0"})
    sits = job("sits", 4, only=eu, seats=("z0r0n0",) * 4, work_left=1e6)
    short = job("short", 4, only=eu, work_left=60.0)
    state, made = decided([sits, short], nodes)
    after = {one.id: one.seats for one in apply(state, made).jobs}
    assert after == {"sits": (), "short": ("z0r0n0",) * 4}
    free = replace(sits, id="free", only=frozenset())
    state, made = decided([free, short], nodes)
    after = {one.id: one.seats for one in apply(state, made).jobs}
    assert after == {"free": ("z1r0n0",) * 4, "short": ("z0r0n0",) * 4}


def test_what_one_cannot_use_where_it_may_run_goes_to_others() -> None:
    nodes = cluster(zones=2, racks=1, nodes=1)
    bound = [job(f"b{at}", 4, only=frozenset({"z0"}), weight=100.0) for at in range(2)]
    state, made = decided([*bound, job("other", 4)], nodes)
    after = {one.id: one.seats for one in apply(state, made).jobs if one.seats}
    assert after["other"] == ("z1r0n0",) * 4
    assert len(after) == 2
    waits = [made_ for made_ in made.decisions if isinstance(made_, Hold)]
    assert {one.reason.code for one in waits} == {"no-room"}


def test_a_gang_that_fits_nowhere_yet_is_told_when_and_only_who_is_gone_by_then_goes_first() -> None:
    strict = SpeedCurve(SIZES, {"gpu": (CLOSE.speeds["gpu"][0], tuple(0.0 for _ in SIZES))})
    nodes = cluster(zones=1, racks=1, nodes=2)
    cores = {"cpu": 1.0}
    runs = [
        job("r0", 2, curve=strict, demand=cores, seats=("z0r0n0",) * 2, work_left=2_000.0, restart_cost_s=1e6),
        job("r1", 2, curve=strict, demand=cores, seats=("z0r0n1",) * 2, work_left=9_000.0, restart_cost_s=1e6),
    ]
    head = job("head", 4, curve=strict, demand=cores, work_left=100.0, weight=50.0)
    short = job("short", 2, curve=strict, demand=cores, work_left=1_000.0, weight=1e-3)
    long = job("long", 2, curve=strict, demand=cores, work_left=4_000.0, weight=2e-3)
    fresh = [replace(one, submitted_s=100.0) for one in (short, long, replace(long, id="longer"))]
    state, made = decided([*runs, head, *fresh], nodes)
    hold = by_job(made)["head"]
    assert isinstance(hold, Hold)
    assert hold.reason.code == "room-kept"
    assert hold.expected_start_s == pytest.approx(1_100.0)
    assert [(one.job, one.nodes) for one in made.reservations] == [("head", ("z0r0n0",))]
    after = {one.id: one.seats for one in apply(state, made).jobs if one.seats}
    assert after["short"] == ("z0r0n0",) * 2
    assert after["long"] == ("z0r0n1",) * 2
    smaller = replace(head, min_workers=1, elastic=True)
    _, made = decided([*runs, smaller], nodes)
    start = by_job(made)["head"]
    assert isinstance(start, Start)
    assert len(start.seats) == 2
    assert made.reservations == ()


def test_whoever_would_start_over_is_not_moved_for_others() -> None:
    cores = {"cpu": 1.0}
    nodes = cluster(zones=1, racks=1, nodes=2)
    easy = job("easy", 2, curve=curve(0.5), demand=cores, seats=("z0r0n0",) * 2, since_s=0.0, restart_cost_s=1.0)
    other = replace(easy, id="other", seats=("z0r0n1",) * 2)
    close = job("close", 4, curve=curve(0.5), demand=cores)
    for loses, stays in ((easy, "easy"), (other, "other")):
        runs = [replace(one, starts_over=one is loses) for one in (easy, other)]
        state = ClusterState(5_000.0, nodes, [], [*runs, close], round_s=60.0, at_once=True)
        after = {one.id: one.seats for one in apply(state, Market()(state)).jobs}
        assert len(set(after["close"])) == 1
        assert after[stays] == loses.seats


@st.composite
def states(draw: st.DrawFn) -> ClusterState:
    nodes = cluster(draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    jobs = []
    for at in range(draw(st.integers(0, 8))):
        size = draw(st.sampled_from([1, 2, 4, 8]))
        jobs.append(
            JobState(
                f"j{at}", f"t{draw(st.integers(0, 1))}", draw(st.floats(0.0, 90.0)), size, 2 * size, elastic=True,
                demand=draw(st.sampled_from([{}, {"cpu": 2.0}, {"cpu": 3.0, "memory": 30e9}])),
                only=draw(st.sampled_from([frozenset(), frozenset({"z0"}), frozenset({"z1", "z0r0"})])),
                near=draw(st.sampled_from([frozenset(), frozenset({"z0r0n0"})])),
                curve=draw(st.sampled_from([CLOSE, curve(1.0), curve(0.5, 0.0), None])),
                work_left=draw(st.one_of(st.none(), st.floats(10.0, 1e5))),
                restart_cost_s=draw(st.sampled_from([0.0, 30.0])),
            )
        )  # fmt: skip
    sleep = draw(st.sampled_from([None, 0.0]))
    table = draw(st.sampled_from([None, {("", ""): 0.2}]))
    return ClusterState(100.0, nodes, [], jobs, round_s=60.0, at_once=True, sleep_after_s=sleep, colocation=table)


@few
@given(states())
def test_over_rounds_nothing_is_given_twice_residency_holds_and_who_can_stays(state: ClusterState) -> None:
    for _ in range(3):
        made = Market()(state)
        state = apply(state, made, wait_s=60.0)
        assert overfull(state) == []
        places = {node.name: node.places for node in state.nodes}
        for one in state.jobs:
            assert not one.seats or one.min_workers <= len(one.seats) <= one.max_workers
            assert all(not one.only or not one.only.isdisjoint(places[name]) for name in one.seats)
    same = Market()(replace(state, now_s=state.now_s))
    assert {d.job for d in same.decisions if isinstance(d, Start)} <= {one.id for one in state.jobs if not one.seats}


def test_idle_nodes_sleep_after_a_while_and_wake_when_needed() -> None:
    nodes = [replace(one, wake_s=10.0) for one in cluster(zones=1, racks=1, nodes=3)]
    state, made = decided([job("a", 1)], nodes, sleep_after_s=300.0)
    assert made.nodes == ()
    later = replace(apply(state, made, wait_s=400.0), sleep_after_s=300.0)
    made = Market()(later)
    assert [(type(one), one.node) for one in made.nodes] == [(Sleep, "z0r0n1"), (Sleep, "z0r0n2")]
    asleep = [replace(one, asleep=one.name != "z0r0n0") for one in nodes]
    more = replace(later, nodes=asleep, jobs=[*later.jobs, job("b", 3), job("c", 4)], memory=made.memory)
    made = Market()(more)
    assert by_job(made)["b"].seats == ("z0r0n0",) * 3  # type: ignore[union-attr]
    assert [(type(one), one.node) for one in made.nodes] == [(Wake, "z0r0n1")]


def test_what_neighbours_cost_is_learned_from_speeds_beside_them_and_alone() -> None:
    table = learn_losses({}, [Observation("a", ("b",), 70.0, 100.0)])
    assert table == {("a", "b"): pytest.approx(0.3)}
    for _ in range(60):
        table = learn_losses(table, [Observation("a", ("b",), 90.0, 100.0), Observation("a", ("c",), 100.0, 100.0)])
    assert table["a", "b"] == pytest.approx(0.1, abs=1e-3)
    assert slowdown(table, "a", ("b", "c")) == pytest.approx(0.1, abs=1e-3)
    assert learn_losses(table, [Observation("a", (), 10.0, 100.0)]) == table


@few
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["a", "b", "ab"]), st.floats(0.0, 120.0)), max_size=8))
def test_what_is_learned_is_a_part_of_the_speed_in_any_order(seen: list[tuple[str, str, float]]) -> None:
    told = [Observation(kind, tuple(beside), speed, 100.0) for kind, beside, speed in seen]
    table = learn_losses({}, told)
    assert all(0.0 <= lost <= 0.95 for lost in table.values())
    assert table == learn_losses({}, reversed(told))


def test_devices_of_one_node_are_taken_from_as_few_numa_domains_as_possible() -> None:
    assert nearby_devices([0, 2, 3, 4, 5, 6, 7], (4, 4), 3) == [2, 3, 0] or nearby_devices(
        [0, 2, 3, 4, 5, 6, 7], (4, 4), 3
    ) == [0, 2, 3]
    assert nearby_devices([0, 4, 5, 6], (4, 4), 2) == [4, 5]
    assert Counter(device // 4 for device in nearby_devices(range(8), (4, 4), 5)) == {0: 4, 1: 1}
    assert nearby_devices([3, 1], (), 2) == [1, 3]
