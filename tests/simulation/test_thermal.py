"""Temperatures in the simulator: nodes warm up with what they draw, and gangs go to the cooler of two alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.errors import InvalidSpec
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.market import Market
from fairlead.scheduling.state import ClusterState, Round, Start
from fairlead.simulation.clusters import cluster
from fairlead.simulation.engine import Settings, simulate
from fairlead.simulation.runs import run
from fairlead.simulation.thermal import Temperatures, tends_to
from fairlead.simulation.trace import Clock, Trace, TraceJob
from fairlead.simulation.trace_formats.plain import ScaledJob

HEATS = (20.0, 80.0, 600.0)
CURVE = SpeedCurve((2,), {"v100": ((1.0,), (1.0,))})


def nodes(count: int = 2) -> list[Node]:
    return [Node(f"n{at}", {DEVICE: 2.0}, "v100", heats=HEATS) for at in range(count)]


def line(*jobs: tuple[float, float]) -> Trace:
    """Gangs of two as (arrival, seconds): each fills a node."""
    made = [TraceJob(f"j{at}", since_s, ScaledJob(long_s, CURVE), 2, 2) for at, (since_s, long_s) in enumerate(jobs)]
    return Trace("line", "csv", made, 60.0, 0.0, clock=Clock.EVENTS)


def test_a_busy_node_comes_close_to_its_hottest_after_a_few_time_constants_and_cools_down_again() -> None:
    one = nodes(1)[0]
    warmth, everything = Temperatures([one]), {one.name: one}
    assert warmth.now_c[one.name] == pytest.approx(20.0 + 0.15 * 60.0)
    warmth.advance(600.0, everything, {one.name: 0})
    assert warmth.now_c[one.name] == pytest.approx(80.0 - 51.0 / 2.71828, abs=0.01)
    warmth.advance(6_000.0, everything, {one.name: 0})
    assert warmth.now_c[one.name] == pytest.approx(80.0, abs=0.1)
    warmth.advance(6_000.0, everything, {one.name: 2})
    assert warmth.now_c[one.name] == pytest.approx(29.0, abs=0.1)
    assert tends_to(replace(one, asleep=True), 0) < tends_to(one, 0)


def test_steps_of_time_add_up() -> None:
    once, often, everything = Temperatures(nodes()), Temperatures(nodes()), {node.name: node for node in nodes()}
    once.advance(900.0, everything, {"n0": 1, "n1": 2})
    for _ in range(9):
        often.advance(100.0, everything, {"n0": 1, "n1": 2})
    assert once.now_c == pytest.approx(often.now_c)


def test_who_comes_next_sits_on_the_node_that_has_rested() -> None:
    """The first node is free again, but warm: the first by name would be the same one every time."""
    trace = line(*((700.0 * at, 600.0) for at in range(8)))
    warm = run(trace, "fairlead", nodes(), Settings(draw=True))
    blind = run(trace, "fairlead", [replace(node, heats=None) for node in nodes()], Settings(draw=True))
    sat = [job.segments[0][2][0] for job in warm.jobs]
    assert sat == ["n0", "n1"] * 4
    assert {job.segments[0][2][0] for job in blind.jobs} == {"n0"}
    always = run(trace, "fairlead", nodes(1))
    assert max(warm.peak_c.values()) < always.peak_c["n0"] - 5.0
    assert warm.makespan_s == blind.makespan_s


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 4_000.0), st.floats(60.0, 3_000.0)), min_size=1, max_size=12),
       st.integers(2, 4))  # fmt: skip
def test_a_hot_node_gets_no_new_gang_while_a_cooler_one_has_as_much_room(
    jobs: list[tuple[float, float]], count: int
) -> None:
    """As live: of nodes that are otherwise alike the cooler one is taken."""
    market = Market(waits=False)

    def watched(state: ClusterState) -> Round:
        made = market(state)
        after = {job.id: job.seats for job in state.jobs}
        after |= {one.job: one.seats if isinstance(one, Start) else () for one in made.decisions}
        full = {name for seats in after.values() for name in seats}
        warm = {node.name: node.temperature_c or 0.0 for node in state.nodes}
        taken = [one.seats[0] for one in made.decisions if isinstance(one, Start)]
        left = [warm[name] for name in warm.keys() - full]
        assert not taken or not left or max(warm[name] for name in taken) <= min(left) + 0.2
        return made

    simulate(line(*jobs), nodes(count), watched)


def test_a_cluster_file_says_how_nodes_heat_up_and_nonsense_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("- {type: v100, nodes: 2, devices: 2, heats: [25, 75, 900]}\n")
    assert [node.heats for node in cluster(str(path))] == [(25.0, 75.0, 900.0)] * 2
    for wrong in ("[75, 25, 900]", "[25, 75, 0]", "[25, 75]", "warm"):
        path.write_text(f"- {{type: v100, nodes: 2, devices: 2, heats: {wrong}}}\n")
        with pytest.raises(InvalidSpec):
            cluster(str(path))
