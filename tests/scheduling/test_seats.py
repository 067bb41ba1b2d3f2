"""Where gangs sit, promise by promise: nothing is given twice, residency holds, gangs are whole, who can stays."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.market.capacity_arrays import NodeCapacity, fitting
from fairlead.scheduling.market.defrag import MOST_MOVES
from fairlead.scheduling.market.occupancy import SeatRequest
from fairlead.scheduling.market.seating import SeatedGangs, arrange_gangs
from tests.scheduling.clusters import several

Seats = dict[str, tuple[str, ...]]


def capacity(zones: int = 2, racks: int = 2, nodes: int = 2, devices: int = 4, **fields: object) -> NodeCapacity:
    """Zones of racks of nodes, all alike."""
    return NodeCapacity.of([
        Node(f"z{z}r{r}n{n}", {DEVICE: float(devices), "cpu": 2.0 * devices}, "gpu",
             topology=(f"z{z}", f"z{z}r{r}", f"z{z}r{r}n{n}"), **fields)  # type: ignore[arg-type]
        for z in range(zones) for r in range(racks) for n in range(nodes)
    ])  # fmt: skip


CLOSE = (1.0, 0.8, 0.6, 0.4)
"""Paces of a gang that exchanges a lot."""


@st.composite
def scenes(draw: st.DrawFn) -> tuple[NodeCapacity, list[SeatRequest], Seats]:
    """A cluster, gangs that want seats, and where some of them sit already."""
    place = capacity(draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 4)))
    free, spare = place.devices.copy(), {name: amount.copy() for name, amount in place.amounts.items()}
    requests, now = [], {}
    for at in range(draw(st.integers(0, 10))):
        wish = SeatRequest(
            f"j{at}", draw(st.sampled_from([1, 1, 2, 3, 4, 8])),
            draw(st.sampled_from([(), (("cpu", 1.0),), (("cpu", 3.0),)])),
            only=draw(st.sampled_from([frozenset(), frozenset(), frozenset({"z0"}), frozenset({"z1", "z0r0n0"})])),
            near=draw(st.sampled_from([frozenset(), frozenset({"z0r0"})])),
            paces=draw(st.sampled_from([(1.0,), CLOSE, (1.0, 0.0), (0.0, 1.0, 0.5)])),
            costs_s=draw(st.sampled_from([0.0, 30.0, 1e9])), takes_s=draw(st.sampled_from([10.0, 1e4, inf])),
            ends_s=draw(st.sampled_from([10.0, 1e4])),
        )  # fmt: skip
        requests.append(wish)
        fit = fitting(wish.need, free, spare) * place.allowed(wish.only)
        if draw(st.booleans()) and int(fit.sum()) >= wish.size:
            seats: list[str] = []
            for node, room in enumerate(fit.tolist()):
                take = min(room, wish.size - len(seats))
                seats += [place.nodes[node].name] * take
                free[node] -= take
                for name, much in wish.need:
                    spare[name][node] -= take * much
            now[wish.job] = tuple(seats)
    return place, requests, now


def used(requests: list[SeatRequest], found: SeatedGangs) -> dict[str, Counter[str]]:
    taken: dict[str, Counter[str]] = {}
    for wish in requests:
        for name in found.seats.get(wish.job, ()):
            on = taken.setdefault(name, Counter())
            on[DEVICE] += 1
            for resource, much in wish.need:
                on[resource] += much  # type: ignore[assignment]
    return taken


@several
@given(scenes())
def test_no_node_gives_more_than_it_has_of_anything(scene: tuple[NodeCapacity, list[SeatRequest], Seats]) -> None:
    place, requests, now = scene
    for name, amounts in used(requests, arrange_gangs(place, requests, now)).items():
        capacity = place.nodes[place.at[name]].capacity
        assert all(much <= capacity.get(resource, 0.0) + 1e-6 for resource, much in amounts.items())


@several
@given(scenes())
def test_gangs_are_whole_and_run_only_where_they_may(scene: tuple[NodeCapacity, list[SeatRequest], Seats]) -> None:
    place, requests, now = scene
    found = arrange_gangs(place, requests, now)
    for wish in requests:
        seats = found.seats.get(wish.job, ())
        assert len(seats) == (0 if wish.job in found.unseated else wish.size)
        nodes = [place.nodes[place.at[name]] for name in seats]
        assert all(not wish.only or not wish.only.isdisjoint(node.places) for node in nodes)


@several
@given(scenes())
def test_who_runs_and_has_all_the_room_it_needs_is_not_moved_without_need(
    scene: tuple[NodeCapacity, list[SeatRequest], Seats],
) -> None:
    place, requests, now = scene
    running = [wish for wish in requests if wish.job in now]
    found = arrange_gangs(place, running, now)
    assert {job: sorted(seats) for job, seats in found.seats.items()} == {job: sorted(now[job]) for job in now}
    moved = [wish for wish in running if wish.job in arrange_gangs(place, requests, now).unseated]
    assert not moved


@several
@given(scenes(), st.randoms(use_true_random=False))
def test_the_order_of_wishes_does_not_matter(scene: tuple[NodeCapacity, list[SeatRequest], Seats], rng: object) -> None:
    place, requests, now = scene
    shuffled = list(requests)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = arrange_gangs(place, requests, now), arrange_gangs(place, shuffled, now)
    assert (one.seats, set(one.unseated)) == (other.seats, set(other.unseated))


@several
@given(scenes(), st.integers(2, 16))
def test_a_close_gang_sits_in_one_rack_when_one_is_free(
    scene: tuple[NodeCapacity, list[SeatRequest], Seats], size: int
) -> None:
    place, requests, now = scene
    close = SeatRequest("close", size, paces=CLOSE)
    floor = arrange_gangs(place, [wish for wish in requests if wish.job in now], now)
    full = Counter(name for seats in floor.seats.values() for name in seats)
    racks: dict[tuple[str, ...], int] = {}
    for node in place.nodes:
        racks[node.path] = racks.get(node.path, 0) + (0 if full[node.name] else node.devices)
    found = arrange_gangs(place, [*(wish for wish in requests if wish.job in now), close], now)
    if max(racks.values()) >= size:
        assert len({place.nodes[place.at[name]].path for name in found.seats["close"]}) == 1


@several
@given(st.lists(st.sampled_from(["z0r0n0", "z0r0n1", "z0r1n0", "z0r1n1"]), max_size=8), st.integers(5, 8))
def test_a_close_gang_gets_a_rack_when_one_can_be_cleared(sitting: list[str], size: int) -> None:
    place = capacity(zones=1)
    now = {f"j{at}": (name,) for at, name in enumerate(sitting) if sitting[:at].count(name) < 4}
    small = [SeatRequest(job, 1, costs_s=1.0) for job in now]
    found = arrange_gangs(place, [*small, SeatRequest("close", size, paces=CLOSE)], now)
    assert not found.unseated
    assert len({name[:4] for name in found.seats["close"]}) == 1


def test_no_more_than_a_few_running_gangs_move_in_one_round() -> None:
    place = capacity(zones=1, racks=8, nodes=1)
    small = [SeatRequest(f"s{at}", 1, costs_s=1.0) for at in range(16)]
    now = {wish.job: (f"z0r{at % 8}n0",) for at, wish in enumerate(small)}
    close = [SeatRequest(f"c{at}", 4, paces=CLOSE) for at in range(4)]
    found = arrange_gangs(place, [*small, *close], now)
    moved = [job for job in now if found.seats[job] != now[job]]
    assert 0 < len(moved) <= MOST_MOVES
    assert all(len(found.seats[wish.job]) == 4 for wish in close)


def test_a_gang_that_cares_sits_as_close_as_it_can_and_one_that_does_not_takes_remainders() -> None:
    place = capacity()
    busy = [SeatRequest(f"b{at}", 3) for at in range(4)]
    now = {"b0": ("z0r0n0",) * 3, "b1": ("z0r0n1",) * 3, "b2": ("z0r1n0",) * 3, "b3": ("z1r0n0",) * 3}
    found = arrange_gangs(
        place, [*busy, SeatRequest("cares", 8, paces=CLOSE), SeatRequest("easy", 4, paces=(1.0,))], now
    ).seats
    assert set(found["cares"]) == {"z1r1n0", "z1r1n1"}
    assert set(found["easy"]) in ({"z0r1n1"}, {"z1r0n1"})
    spread = arrange_gangs(place, [*busy, SeatRequest("easy", 5, paces=(1.0,))], now).seats["easy"]
    assert set(spread) >= {"z0r0n0", "z0r0n1", "z0r1n0", "z1r0n0"}


def test_gangs_that_cost_little_to_move_make_room_for_one_that_needs_a_rack() -> None:
    place = capacity(zones=1)
    small = [SeatRequest("cheap", 1, costs_s=30.0), SeatRequest("dear", 1, costs_s=1e9)]
    now = {"cheap": ("z0r0n0",), "dear": ("z0r1n0",)}
    found = arrange_gangs(place, [*small, SeatRequest("close", 8, paces=CLOSE)], now).seats
    assert set(found["close"]) == {"z0r0n0", "z0r0n1"}
    assert found["dear"] == now["dear"]
    assert place.nodes[place.at[found["cheap"][0]]].path == ("z0", "z0r1")


def test_nobody_is_moved_for_less_than_the_move_costs() -> None:
    place = capacity(zones=1)
    dear = [SeatRequest("a", 1, costs_s=1e6), SeatRequest("b", 1, costs_s=1e6)]
    now = {"a": ("z0r0n0",), "b": ("z0r1n0",)}
    found = arrange_gangs(place, [*dear, SeatRequest("close", 8, paces=CLOSE)], now).seats
    assert {job: found[job] for job in now} == now
    assert len(found["close"]) == 8


def test_who_may_run_in_one_zone_only_gets_it_although_others_sit_there() -> None:
    place = capacity(zones=2, racks=1, nodes=1)
    others = [SeatRequest(f"o{at}", 1, costs_s=30.0) for at in range(4)]
    now = {wish.job: ("z0r0n0",) for wish in others}
    bound = SeatRequest("bound", 4, only=frozenset({"z0"}))
    found = arrange_gangs(place, [*others, bound], now)
    assert found.seats["bound"] == ("z0r0n0",) * 4
    assert not found.unseated


def test_a_gang_prefers_the_rack_that_holds_its_data_but_goes_elsewhere_when_that_is_full() -> None:
    place = capacity()
    wish = SeatRequest("w", 4, paces=CLOSE, near=frozenset({"z1r1"}))
    assert arrange_gangs(place, [wish], {}).seats["w"][0].startswith("z1r1")
    full = [SeatRequest(f"f{at}", 4, costs_s=1e9) for at in range(2)]
    now = {"f0": ("z1r1n0",) * 4, "f1": ("z1r1n1",) * 4}
    assert len(set(arrange_gangs(place, [wish, *full], now).seats["w"])) == 1


def test_room_is_kept_for_the_gang_at_the_head_and_only_who_is_gone_by_then_goes_before_it() -> None:
    place = capacity(zones=1, racks=1, nodes=2)
    running = [
        SeatRequest("r0", 2, ends_s=500.0, takes_s=500.0, costs_s=1e9),
        SeatRequest("r1", 2, ends_s=900.0, costs_s=1e9),
    ]
    now = {"r0": ("z0r0n0",) * 2, "r1": ("z0r0n1",) * 2}
    head = SeatRequest("head", 4, paces=(1.0, 0.0))
    short, long = SeatRequest("short", 2, takes_s=400.0, ends_s=400.0), SeatRequest("long", 2)
    found = arrange_gangs(place, [*running, head, short, long], now)
    assert found.kept is not None
    assert (found.kept.job, found.kept.in_s, found.kept.nodes) == ("head", 500.0, ("z0r0n0",))
    assert found.unseated == ("head",)
    assert found.seats["long"] == ("z0r0n1",) * 2
    assert found.seats["short"] == ("z0r0n0",) * 2
    again = arrange_gangs(place, [*running, replace(long, job="other"), long], now, head=head)
    assert (set(again.seats), again.unseated) == ({"r0", "r1", "long"}, ("other",))


def test_cpu_and_memory_count_besides_devices() -> None:
    place = capacity(zones=1, racks=1, nodes=2, devices=4)
    hungry = [SeatRequest(f"h{at}", 1, (("cpu", 5.0),)) for at in range(3)]
    found = arrange_gangs(place, hungry, {})
    assert sorted(seats[0] for seats in found.seats.values()) == ["z0r0n0", "z0r0n1"]
    assert found.unseated == ("h2",)


def test_among_equals_an_awake_and_cool_node_is_taken() -> None:
    nodes = [
        Node("a", {DEVICE: 2.0}, "gpu", asleep=True, temperature_c=30.0),
        Node("b", {DEVICE: 2.0}, "gpu", temperature_c=70.0),
        Node("c", {DEVICE: 2.0}, "gpu", temperature_c=50.0),
    ]
    place = NodeCapacity.of(nodes)
    found = arrange_gangs(place, [SeatRequest("one", 1), SeatRequest("pair", 2)], {}).seats
    assert found == {"pair": ("c", "c"), "one": ("b",)}
    assert arrange_gangs(place, [SeatRequest(f"w{at}", 2) for at in range(3)], {}).seats["w2"] == ("a", "a")


def test_a_gang_keeps_away_from_neighbours_that_slow_it_down() -> None:
    place = capacity(zones=1, racks=1, nodes=2, devices=4)
    sits = [SeatRequest("loud", 2, kind="loud", costs_s=1e9), SeatRequest("calm", 2, kind="calm", costs_s=1e9)]
    now = {"loud": ("z0r0n0",) * 2, "calm": ("z0r0n1",) * 2}
    wish = SeatRequest("new", 2, kind="calm")
    assert arrange_gangs(place, [*sits, wish], now).seats["new"] == ("z0r0n0",) * 2
    table = {("calm", "loud"): 0.3}
    assert arrange_gangs(place, [*sits, wish], now, table=table).seats["new"] == ("z0r0n1",) * 2
