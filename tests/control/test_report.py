"""The figures of the report, from the usage ledger."""

from __future__ import annotations

import pytest

from fairlead.control.records import Usage
from fairlead.control.report import shares_over_time


def used(tenant: str, devices: int, from_s: float, to_s: float) -> Usage:
    return Usage(f"{tenant}-job", tenant, "ann", 1, "node-0", "cpu", devices, 1.0, from_s, to_s)


def test_shares_over_time_never_show_more_devices_than_there_were() -> None:
    moves = [used("vision", 4, 0.0, 50.3), used("text", 4, 50.3, 50.4), used("vision", 4, 50.4, 100.0)]
    points = shares_over_time(moves, points=10)
    assert [sum(point["devices"].values()) for point in points] == pytest.approx([4.0] * 10)
    assert points[5]["devices"]["text"] == pytest.approx(0.04)


def test_shares_over_time_add_up_to_the_ledger() -> None:
    lines = [used("vision", 2, 0.0, 7.0), used("text", 1, 3.5, 10.0)]
    points = shares_over_time(lines, points=4)
    step_s = points[1]["time_s"] - points[0]["time_s"]
    for tenant, device_s in (("vision", 14.0), ("text", 6.5)):
        assert sum(point["devices"].get(tenant, 0.0) for point in points) * step_s == pytest.approx(device_s)
