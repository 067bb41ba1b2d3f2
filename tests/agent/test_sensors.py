"""Temperature and power are told where the machine knows them, and nothing is made up where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.agent.node.sensors import VARIABLE, Sensors


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


def test_a_machine_without_sensors_tells_nothing(tmp_path: Path) -> None:
    assert Sensors(tmp_path / "none").read() == (None, None)


def test_the_hottest_zone_that_can_be_believed_counts(tmp_path: Path) -> None:
    for place, value in enumerate((41_000, 67_500, -274_000, 999_000, "no number")):
        write(tmp_path / "thermal" / f"thermal_zone{place}" / "temp", value)
    assert Sensors(tmp_path).read() == (67.5, None)
    write(tmp_path / "hwmon" / "hwmon0" / "temp1_input", 71_000)
    assert Sensors(tmp_path).read() == (71.0, None), "some machines have chips instead of zones"


def test_power_is_the_energy_of_the_packages_over_time_also_when_a_counter_begins_again(tmp_path: Path) -> None:
    first, second, part = (tmp_path / "powercap" / name for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"))
    write(first / "energy_uj", 100_000_000)
    write(second / "energy_uj", 250_000_000)
    write(second / "max_energy_range_uj", 262_000_000)
    write(part / "energy_uj", 0)
    sensors = Sensors(tmp_path)
    assert sensors.read(100.0) == (None, None)  # one reading is no power
    write(first / "energy_uj", 400_000_000)  # 300 J
    write(second / "energy_uj", 188_000_000)  # 12 J to the end and 188 J after it
    write(part / "energy_uj", 10**9)  # part of the first
    assert sensors.read(102.0) == (None, None)  # not time yet
    assert sensors.read(110.0) == (None, 50.0)


def test_a_node_may_have_sensors_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "thermal" / "thermal_zone0" / "temp", 40_000)
    write(tmp_path / "node-1" / "thermal" / "thermal_zone0" / "temp", 80_000)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert Sensors.of("node-0").read() == (40.0, None)
    assert Sensors.of("node-1").read() == (80.0, None)
