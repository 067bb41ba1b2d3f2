"""Live rounds prefer nodes that are awake, cool and in good company, and say who may sleep and who must wake."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.live_round import live_round
from fairlead.scheduling.state import ClusterState, JobState, Sleep, Start, Wake
from tests.scheduling.clusters import by_job, few, job, state, tenants

SLEEPY = {"sleep_after_s": 60.0, "tenants": tenants(a=1)}


def cluster(count: int = 3, devices: int = 2, **fields: object) -> list[Node]:
    return [Node(f"node-{i}", {DEVICE: float(devices)}, wake_s=1.0, **fields) for i in range(count)]  # type: ignore[arg-type]


def seats(now: ClusterState, name: str) -> tuple[str, ...]:
    made = by_job(live_round(now))[name]
    assert isinstance(made, Start)
    return made.seats


def test_nodes_that_nobody_needs_sleep_after_their_time_and_wake_for_a_gang() -> None:
    now = state([job("a", seats=("node-0",), since_s=0.0)], nodes=cluster(), **SLEEPY)
    first = live_round(now)
    assert first.nodes == () and first.memory["idle_since"] == {"node-1": 100.0, "node-2": 100.0}
    later = replace(now, now_s=161.0, memory=first.memory)
    rest = live_round(later)
    assert [(type(one), one.node) for one in rest.nodes] == [(Sleep, "node-1"), (Sleep, "node-2")]
    assert "idle for 1 minutes" in rest.nodes[0].reason.text
    asleep = [replace(node, asleep=node.name != "node-0") for node in later.nodes]
    more = replace(later, nodes=asleep, jobs=[*later.jobs, job("b"), job("c")], memory=rest.memory)
    made = live_round(more)
    assert by_job(made)["b"].seats == ("node-0",), "who is awake takes it first"  # type: ignore[union-attr]
    assert by_job(made)["c"].seats == ("node-1",)  # type: ignore[union-attr]
    assert [(type(one), one.node) for one in made.nodes] == [(Wake, "node-1")]


def test_a_gang_rather_sits_together_on_a_node_that_sleeps_than_apart() -> None:
    nodes = cluster()
    nodes = [replace(nodes[0], asleep=True), *nodes[1:]]
    busy = [job("x", seats=("node-1",), since_s=0.0), job("y", seats=("node-2",), since_s=0.0)]
    now = state([*busy, job("g", workers=(2, 2))], nodes=nodes, **SLEEPY)
    assert seats(now, "g") == ("node-0", "node-0")


def test_without_leave_to_sleep_nobody_does() -> None:
    now = state([], nodes=cluster(), tenants=tenants(a=1), now_s=1e9)
    assert live_round(now).nodes == () and "idle_since" not in live_round(now).memory


def test_among_equals_the_cooler_node_is_taken_and_small_differences_do_not_count() -> None:
    warm = [replace(node, temperature_c=degrees) for node, degrees in zip(cluster(), (80.0, 79.0, 50.0), strict=True)]
    now = state([job("a")], nodes=warm, tenants=tenants(a=1))
    assert seats(now, "a") == ("node-2",)
    alike = [replace(node, temperature_c=degrees) for node, degrees in zip(cluster(), (50.4, 49.8, 50.0), strict=True)]
    assert seats(replace(now, nodes=alike), "a") == ("node-0",)


def classed(name: str, kind: str, **fields: object) -> JobState:
    return job(name, facts={"application": kind}, **fields)  # type: ignore[arg-type]


def test_a_gang_stays_away_from_whom_it_is_known_to_suffer_from() -> None:
    running = [
        classed("x", "loud", seats=("node-0",), since_s=0.0),
        classed("y", "calm", seats=("node-1",), since_s=0.0),
    ]
    now = state([*running, classed("z", "shy")], nodes=cluster(2), tenants=tenants(a=1))
    assert seats(now, "z") == ("node-0",)
    assert seats(replace(now, colocation={("shy", "loud"): 0.4}), "z") == ("node-1",), "it would lose two fifths there"
    assert seats(replace(now, colocation={("loud", "shy"): 0.4}), "z") == ("node-1",), "or the other one would"
    assert seats(replace(now, colocation={("shy", "loud"): 0.01}), "z") == ("node-0",), "a hundredth is nothing"
    full = [*running, classed("w", "calm", seats=("node-1",), since_s=0.0), classed("z", "shy")]
    bad = {("shy", "loud"): 0.4}
    assert seats(replace(now, jobs=full, colocation=bad), "z") == ("node-0",), "better in bad company than not at all"


@few
@given(st.data())
def test_the_order_of_the_input_makes_no_difference_to_who_rests_or_sits_where(data: st.DataObject) -> None:
    nodes = [
        replace(node, asleep=data.draw(st.booleans()), temperature_c=data.draw(st.sampled_from([None, 40.0, 70.0])))
        for node in cluster(4)
    ]
    kinds = st.sampled_from(["u", "v", "w"])
    jobs = [classed(f"j{i}", data.draw(kinds)) for i in range(data.draw(st.integers(0, 4)))]
    awake = [node.name for node in nodes if not node.asleep]
    jobs += [classed(f"r{i}", data.draw(kinds), seats=(name,), since_s=0.0) for i, name in enumerate(awake[:2])]
    table = {(a, b): data.draw(st.sampled_from([0.0, 0.3])) for a in "uvw" for b in "uvw"}
    now = state(jobs, nodes=nodes, colocation=table, memory={"idle_since": {"node-3": 0.0}}, **SLEEPY)
    made = live_round(now)
    assert live_round(replace(now, jobs=jobs[::-1], nodes=nodes[::-1])) == made
    used = {name for one in made.decisions if isinstance(one, Start) for name in one.seats}
    used |= {name for one in jobs for name in one.seats}
    told = {one.node: one for one in made.nodes}
    asleep = {node.name for node in nodes if node.asleep}
    assert {name for name, one in told.items() if isinstance(one, Wake)} == used & asleep
    assert not any(isinstance(one, Sleep) and (one.node in used or one.node in asleep) for one in told.values())
