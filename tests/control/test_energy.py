"""The report's energy: devices busy, idle and asleep, what sleep saved, and whose it was."""

from __future__ import annotations

import pytest

from fairlead.cluster import DEVICE, Node
from fairlead.control.accounting.energy import energy_report
from fairlead.control.records import Usage
from fairlead.control.store.node_sleep import NodeSleep
from fairlead.scheduling.market.energy import usual_power

NODES = [Node(f"node-{i}", {DEVICE: 2.0}, watts=(10.0, 100.0), wake_s=3.0) for i in range(2)]
HOUR = 3600.0


def line(tenant: str, node: str, from_s: float, to_s: float, devices: int = 1) -> Usage:
    return Usage("j", tenant, "u", 1, node, "cpu", devices, 1.0, from_s, to_s)


def test_an_idle_hour_a_busy_one_and_one_asleep() -> None:
    idle = energy_report(NODES, [], [], 0.0, HOUR)
    assert idle["kwh"] == pytest.approx(4 * 0.010) and idle["saved_kwh"] == 0.0
    busy = energy_report(NODES, [line("a", "node-0", 0.0, HOUR, 2)], [], 0.0, HOUR)
    assert busy["kwh"] == pytest.approx(2 * 0.100 + 2 * 0.010)
    assert busy["tenants"] == {"a": pytest.approx(0.2)}
    asleep = energy_report(NODES, [], [NodeSleep("node-1", 0.0, None)], 0.0, HOUR)
    assert asleep["kwh"] == pytest.approx(2 * 0.010 + 2 * 0.001)
    assert asleep["saved_kwh"] == pytest.approx(2 * 0.009) and asleep["asleep_s"] == HOUR and asleep["wakes"] == 0


def test_waking_costs_what_it_was_seen_to_take() -> None:
    rests = [NodeSleep("node-1", 0.0, HOUR / 2, woken_in_s=10.0)]
    found = energy_report(NODES, [], rests, 0.0, HOUR)
    slept = 2 * 0.009 / 2
    assert found["wakes"] == 1 and found["saved_kwh"] == pytest.approx(slept - 2 * 10.0 * 90.0 / 3.6e6)


def test_only_what_falls_into_the_time_counts() -> None:
    found = energy_report(NODES, [line("a", "node-0", -HOUR, HOUR / 2)], [NodeSleep("node-1", -HOUR, 10.0)], 0.0, HOUR)
    assert found["tenants"]["a"] == pytest.approx(0.05) and found["asleep_s"] == 10.0


def test_a_node_that_is_gone_is_charged_at_the_usual_power_of_its_devices() -> None:
    gone = energy_report([], [line("a", "node-9", 0.0, HOUR, 2)], [], 0.0, HOUR)
    assert gone["tenants"] == {"a": pytest.approx(2 * usual_power("cpu").busy_w / 1000)} and gone["kwh"] == 0.0


def test_several_wakes_count_with_their_mean_and_a_lost_one_not_at_all() -> None:
    sleeps = [NodeSleep("node-1", 0.0, 60.0, 10.0), NodeSleep("node-1", 100.0, 160.0, 30.0),
              NodeSleep("node-1", 200.0, 260.0, None)]  # fmt: skip
    found = energy_report(NODES, [], sleeps, 0.0, HOUR)
    slept = 180.0 * 2 * 9.0 / 3.6e6
    assert found["wakes"] == 2 and found["saved_kwh"] == pytest.approx(slept - 2 * 2 * 20.0 * 90.0 / 3.6e6)


def test_tenants_are_charged_for_what_they_held_each_and_in_the_order_of_their_names() -> None:
    lines = [line("b", "node-0", 0.0, HOUR), line("a", "node-1", 0.0, HOUR / 2), line("b", "node-1", HOUR / 2, HOUR)]
    found = energy_report(NODES, lines, [], 0.0, HOUR)["tenants"]
    assert list(found.items()) == [("a", pytest.approx(0.05)), ("b", pytest.approx(0.15))]


def test_a_report_that_ends_before_it_begins_has_used_nothing() -> None:
    assert energy_report(NODES, [line("a", "node-0", 0.0, HOUR)], [], HOUR, 0.0)["kwh"] == 0.0
