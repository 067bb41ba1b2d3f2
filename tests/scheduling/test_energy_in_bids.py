"""Energy as a term of the choice: between types on which a job gets on alike, the one that draws less."""

from __future__ import annotations

import pytest

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.market import Market, MarketConfig
from fairlead.scheduling.market.energy import busy_watts
from fairlead.scheduling.state import ClusterState, JobState

from .test_market import after


def placed(
    speeds: dict[str, float], watts: dict[str, float], config: MarketConfig | None = None, **facts: object
) -> str:  # fmt: skip
    """The type that one job gets, of one free node of each."""
    nodes = [Node(f"node-{kind}", {DEVICE: 1.0}, kind, watts=(0.1 * busy_w, busy_w)) for kind, busy_w in watts.items()]
    curve = SpeedCurve((1,), {kind: ((speed,), (speed,)) for kind, speed in speeds.items()})
    job = JobState("j", "t", 0.0, curve=curve, work_left=1e4, **facts)  # type: ignore[arg-type]
    state = ClusterState(0.0, nodes, [], [job], round_s=60.0, at_once=True)
    return after(state, Market(config or MarketConfig())(state))["j"][0].removeprefix("node-")


@pytest.mark.parametrize(("first", "second"), [(300.0, 150.0), (150.0, 300.0)])
def test_of_types_that_are_equally_fast_the_one_that_draws_less_is_taken(first: float, second: float) -> None:
    assert placed({"a": 1.0, "b": 1.0}, {"a": first, "b": second}) == ("a" if first < second else "b")


def test_without_the_dial_power_has_no_say() -> None:
    speeds, blind = {"a": 1.0, "b": 1.0}, MarketConfig(energy=0.0)
    assert placed(speeds, {"a": 300.0, "b": 150.0}, blind) == placed(speeds, {"a": 150.0, "b": 300.0}, blind)


def test_nobody_is_slower_for_the_sake_of_energy_unless_the_dial_says_so() -> None:
    speeds, watts = {"a": 1.0, "b": 0.9}, {"a": 700.0, "b": 70.0}
    assert placed(speeds, watts) == "a"
    assert placed(speeds, watts, MarketConfig(energy=1.0)) == "b"


def test_nobody_restarts_for_the_sake_of_energy() -> None:
    speeds, watts = {"a": 1.0, "b": 1.0}, {"a": 300.0, "b": 150.0}
    assert placed(speeds, watts, seats=("node-a",), since_s=-1e4, restart_cost_s=10.0) == "a"


def test_watts_of_a_type_are_those_of_its_nodes_or_else_the_usual_ones() -> None:
    own = [Node("x", {DEVICE: 1.0}, "v100", watts=(30.0, 200.0)), Node("y", {DEVICE: 3.0}, "v100")]
    assert busy_watts(own, ("t4", "v100")).tolist() == [70.0, (200.0 + 3 * 300.0) / 4]
