"""Parameter servers as candidates: only where asked for, by time to accuracy, and better where workers are unlike."""

from __future__ import annotations

import pytest

from fairlead.planning.cost import MORE_STEPS, estimate
from fairlead.planning.plan import Plan
from fairlead.planning.plan_candidates import shapes
from fairlead.planning.search import search
from fairlead.planning.topology import Topology
from tests.planning.made import FAST, SLOW, hardware, model


def served(count: int, staleness: int = 2) -> Plan:
    return Plan(data=count, sync="parameter-server", staleness=staleness)


def test_they_are_candidates_only_for_trainings_that_need_not_be_exact() -> None:
    machines = hardware(4)
    allowed, not_allowed = model(exact=False), model(exact=True)
    assert {shape.staleness for shape in shapes(allowed, machines, on_paper=False)} == {0, 2, 4}
    assert all(shape.sync != "parameter-server" for shape in shapes(not_allowed, machines))
    assert any(one.plan.sync == "parameter-server" for one in search(allowed, machines, keep=40, on_paper=False))


def test_speeds_add_up_until_the_slowest_is_further_behind_than_the_bound() -> None:
    even = estimate(model(), Topology(hardware(4)), served(4)).step_s
    slow = [
        estimate(model(), Topology(hardware(4, speeds=(1, 1, 1, part))), served(4)).step_s for part in (1 / 3, 1e-2)
    ]
    in_step = estimate(model(), Topology(hardware(4, speeds=(1, 1, 1, 1 / 3))), Plan(data=4, sync="allreduce")).step_s
    assert even < slow[0] < 1.35 * even  # a third of one of four workers is left, and little else is lost
    assert in_step > 2 * slow[0]
    assert slow[1] > 20 * even  # one piece takes a hundred times as long: the bound holds the others back


def test_they_are_compared_by_the_time_to_the_same_accuracy() -> None:
    topology = Topology(hardware(4))
    for staleness in (2, 4):
        one = estimate(model(), topology, served(4, staleness))
        assert one.adjusted_step_s == pytest.approx(one.step_s * (1 + MORE_STEPS["parameter-server"] * staleness))


def test_a_slower_link_costs_them_what_they_push_and_pull() -> None:
    near, far = (estimate(model(), Topology(hardware(4, link=link)), served(4)) for link in (FAST, SLOW))
    sent = 2 * 3 / 4 * model().parameters * 4 * (1 / SLOW.bytes_per_s - 1 / FAST.bytes_per_s)
    assert far.step_s - near.step_s == pytest.approx(sent, rel=0.1)


def test_their_memory_holds_what_they_serve() -> None:
    topology = Topology(hardware(4))
    plain = estimate(model(), topology, Plan(data=4, sync="allreduce")).memory_bytes
    assert estimate(model(), topology, served(4)).memory_bytes > plain
