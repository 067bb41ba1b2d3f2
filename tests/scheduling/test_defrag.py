"""Defragmentation live: the cheapest gang moves for one that fits nowhere, one at a time, and only if it pays."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.explain import explain
from fairlead.scheduling.live_round import live_round
from fairlead.scheduling.state import ClusterState, JobState, Resize, Start
from tests.scheduling.clusters import SlowBackend, by_job, changes, few, job, overfull, state, tenants

EU, US = ("eu", "node-0"), ("us", "node-1")


def two_zones() -> list[Node]:
    return [Node(path[-1], {DEVICE: 1.0}, topology=path) for path in (EU, US)]


def running(name: str, *seats: str, **fields: object) -> JobState:
    fields.setdefault("workers", (len(seats), len(seats)))
    return job(name, seats=seats, since_s=0.0, **fields)  # type: ignore[arg-type]


def bound(name: str = "b", **fields: object) -> JobState:
    return job(name, only=frozenset({"eu"}), submitted_s=99.0, **fields)  # type: ignore[arg-type]


def test_a_gang_that_may_sit_anywhere_moves_for_one_that_may_not() -> None:
    now = state([running("a", "node-0"), bound()], nodes=two_zones(), tenants=tenants(a=1))
    made = by_job(live_round(now))
    move = made["a"]
    assert isinstance(move, Resize) and move.seats == ("node-1",)
    assert move.reason.code == "defragment"
    assert "moves from node-0 to node-1: waiting job b of tenant a needs 1 device" in move.reason.text
    told = explain(now, "b")
    assert told is not None and "room is being made by job a of tenant a" in told.headline
    why = explain(now, "a")
    assert why is not None and "the move stops 1 worker for about 1.0 s" in why.headline


def test_who_room_was_made_for_starts_there_and_nobody_else() -> None:
    others = [job("c", submitted_s=98.0), bound()]
    backend = SlowBackend(state([running("a", "node-0"), *others], nodes=two_zones(), tenants=tenants(a=1)), takes=2)
    seen = [decision for _ in range(8) for decision in backend.round(1.0)]
    assert not any(isinstance(one, Resize) and one.job == "a" for one in seen), "c takes what is free: nothing to gain"
    backend = SlowBackend(state([running("a", "node-0"), bound()], nodes=two_zones(), tenants=tenants(a=1)), takes=2)
    seen = [decision for _ in range(8) for decision in backend.round(1.0)]
    assert [type(one) for one in seen] == [Resize, Start] and seen[1].job == "b", "one move, one start, nothing else"


def test_memory_that_lies_in_pieces_is_put_together_by_the_cheapest_gang() -> None:
    nodes = [Node(f"node-{i}", {DEVICE: 4.0, "memory": 4e9}) for i in range(2)]
    small = [
        running("dear", "node-0", demand={"memory": 2e9}, restart_cost_s=9.0),
        running("cheap", "node-1", demand={"memory": 2e9}, restart_cost_s=2.0),
    ]
    big = job("big", demand={"memory": 4e9}, submitted_s=99.0)
    made = by_job(live_round(state([*small, big], nodes=nodes, tenants=tenants(a=1))))
    assert isinstance(made["cheap"], Resize) and made["cheap"].seats == ("node-0",)
    assert "dear" not in made


def moves(now: ClusterState) -> list[str]:
    return [one.job for one in changes(live_round(now)) if one.reason.code == "defragment"]


def test_nobody_moves_without_a_gain() -> None:
    now = state([running("a", "node-0"), bound()], nodes=two_zones(), tenants=tenants(a=1))
    assert moves(now) == ["a"]
    a, b = now.jobs
    soon = replace(a, speeds={1: 10.0}, remaining_samples=15.0, restart_cost_s=1.0)
    assert moves(replace(now, jobs=[soon, b])) == [], "it is done in 1.5 s, and moving costs one"
    assert moves(replace(now, jobs=[replace(a, starts_over=True), b])) == [], "a command would lose all it did"
    assert moves(replace(now, jobs=[replace(a, since_s=95.0), b])) == [], "it has hardly begun"
    assert moves(replace(now, jobs=[replace(a, only=frozenset({"eu"})), b])) == [], "it may not go there"
    dear = replace(a, restart_cost_s=600.0, since_s=-10_000.0)
    assert moves(replace(now, jobs=[dear, b])) == [], "its restart costs more than what b could gain"
    due = replace(a, finish_by_s=110.0, speeds={1: 10.0}, remaining_samples=90.0)
    assert moves(replace(now, jobs=[due, b])) == [], "it would miss its deadline"
    slow = [two_zones()[0], replace(two_zones()[1], speed=0.03)]
    assert moves(replace(now, nodes=slow)) == [], "there it would lose more than b gains"
    assert moves(replace(now, jobs=[a])) == [], "nobody waits"


def test_at_most_one_gang_begins_to_move_in_a_round() -> None:
    nodes = [Node(f"eu-{i}", {DEVICE: 1.0}, topology=("eu", f"eu-{i}")) for i in range(3)]
    nodes += [Node(f"us-{i}", {DEVICE: 1.0}, topology=("us", f"us-{i}")) for i in range(3)]
    jobs = [running(f"a{i}", f"eu-{i}") for i in range(3)] + [bound(f"b{i}") for i in range(3)]
    backend = SlowBackend(state(jobs, nodes=nodes, tenants=tenants(a=1)), takes=3)
    done = []
    for _ in range(40):
        made = backend.round(1.0)
        assert sum(one.reason.code == "defragment" for one in made) <= 1
        done += [one.job for one in made if one.reason.code == "defragment"]
    assert sorted(done) == ["a0", "a1", "a2"], "each moved once"
    assert all(one.seats for one in backend.now.jobs)


@few
@given(st.data())
def test_moving_neither_overfills_nor_changes_sizes(data: st.DataObject) -> None:
    nodes = [Node(f"node-{i}", {DEVICE: 3.0, "memory": 6.0}, topology=(f"z{i % 2}", f"node-{i}")) for i in range(4)]
    jobs, left = [], {node.name: [3, 6.0] for node in nodes}
    for number in range(data.draw(st.integers(1, 8))):
        memory, name = data.draw(st.sampled_from([1.0, 2.0, 3.0])), data.draw(st.sampled_from(sorted(left)))
        if left[name][0] >= 1 and left[name][1] >= memory:
            left[name] = [left[name][0] - 1, left[name][1] - memory]
            jobs.append(running(f"r{number}", name, demand={"memory": memory}))
    for number in range(data.draw(st.integers(1, 3))):
        only = data.draw(st.sampled_from([frozenset(), frozenset({"z0"}), frozenset({"z1"})]))
        size = data.draw(st.integers(1, 3))
        memory = data.draw(st.sampled_from([1.0, 3.0, 6.0]))
        jobs.append(job(f"w{number}", workers=(size, size), demand={"memory": memory}, only=only, submitted_s=50.0))
    now = state(jobs, nodes=nodes, tenants=tenants(a=1))
    made = live_round(now)
    assert live_round(replace(now, jobs=now.jobs[::-1], nodes=now.nodes[::-1])) == made
    sizes = {one.id: len(one.seats) for one in jobs}
    for one in changes(made):
        if one.reason.code == "defragment":
            assert isinstance(one, Resize) and len(one.seats) == sizes[one.job]
    backend = SlowBackend(now, takes=2)
    for _ in range(6):
        backend.round(1.0)
        assert overfull(backend.now) == []
