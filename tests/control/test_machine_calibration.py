"""The machine is measured once, when it is quiet and somebody needs it, and again when it is in doubt."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from fairlead.control.plans.machine_calibration import IDLE_S, IdleCalibration, StoredCalibration
from fairlead.control.records import KnownModel
from fairlead.control.store import known_models
from fairlead.home import Home
from tests.control.stores import Opened, run

MEASURED = {
    "device": "cpu", "cores": 2, "memory_bytes": 8e9, "flops_per_s": {"float32": 5e10}, "launch_s": 5e-6,
    "memory_bytes_per_s": 8e9, "loop_s": 1e-4,
    "links": {"gloo": {"latency_s": 1e-4, "bytes_per_s": 1e9, "step_s": 1e-4, "message_s": 1e-5, "byte_s": 1e-10}},
}  # fmt: skip


def test_what_was_measured_is_read_and_what_is_damaged_is_not(tmp_path: Path) -> None:
    gauge = StoredCalibration(Home(tmp_path), shared=True)
    assert gauge.needs_measuring
    assert not gauge.machine().measured_here
    file = tmp_path / "profiles" / "node.json"
    file.parent.mkdir()
    for broken in ("{", "{}", '{"flops_per_s": 3}'):
        file.write_text(broken)
        assert not gauge.machine().measured_here
    file.write_text(json.dumps(MEASURED))
    os.utime(file, (1, 1))  # another moment than that of the damaged one, whatever the clock's grain
    assert gauge.machine().measured_here
    states = [gauge.needs_measuring]
    gauge.doubt()
    states.append(gauge.needs_measuring)
    assert states == [False, True]


def test_the_machine_is_measured_only_when_it_is_quiet_and_somebody_needs_it(db: Opened, tmp_path: Path) -> None:
    now, busy, load = [0.0], [False], [0.0]
    gauging = IdleCalibration(
        db.store, StoredCalibration(Home(tmp_path), shared=True), lambda: busy[0], lambda: now[0], lambda: load[0]
    )

    def due(at_s: float, *, working: bool = False, loaded: float = 0.0) -> bool:
        now[0], busy[0], load[0] = at_s, working, loaded
        return run(gauging.due())

    assert not due(0.0)
    assert not due(IDLE_S)  # nobody has trained anything
    db.write(known_models.put, KnownModel("vision", "key", None, "", {}, {}, 0.0))
    assert due(IDLE_S)
    assert not due(IDLE_S + 1, working=True)
    assert not due(IDLE_S + 2)  # quiet again, but only just
    assert due(2 * IDLE_S + 2)
    assert not due(2 * IDLE_S + 3, loaded=1e6)


def test_a_measurement_that_failed_or_makes_no_sense_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gauge, folder = StoredCalibration(Home(tmp_path), shared=True), tmp_path / "profiles"
    really = asyncio.create_subprocess_exec
    ends = "true"

    async def instead(*_: str, **how: Any) -> asyncio.subprocess.Process:
        return await really(ends, **how)

    monkeypatch.setattr("fairlead.control.plans.machine_calibration.asyncio.create_subprocess_exec", instead)
    assert not run(gauge.measure()) and not (folder / "node.json").exists(), "it wrote nothing"
    gauge.doubt()
    (folder / "node.part").write_text(json.dumps(MEASURED))
    ends = "false"
    assert not run(gauge.measure()) and gauge.needs_measuring
    ends = "true"
    assert run(gauge.measure()) and gauge.machine().measured_here and not gauge.needs_measuring
    assert [path.name for path in folder.iterdir()] == ["node.json"], "it is not in doubt any more"
