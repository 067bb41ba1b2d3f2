"""How often snapshots are taken and reach the disk, by what they cost, and where they go when the grid fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairlead.errors import Unavailable
from fairlead.grid.layout import Layout
from fairlead.training.snapshots import snapshotter as module
from fairlead.training.snapshots.flat_state import FlatState
from fairlead.training.snapshots.grid_snapshots import Staged
from fairlead.training.snapshots.snapshotter import Snapshots


class FakeGrid:
    """A grid whose copies take as long as they are told to, and that may fail."""

    usable = True

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.copy_s, self.error = clock, 0.0, None  # type: tuple[list[float], float, Exception | None]
        self.calls: list[str] = []

    def stage(self, step: int, flat: FlatState) -> Staged:
        if isinstance(self.error, MemoryError):
            raise self.error
        self.clock[0] += self.copy_s
        layout = Layout(flat.lengths, flat.meta)
        view = np.empty(layout.nbytes, np.uint8).data
        flat.write(view, layout.parts)
        return Staged(step, view, layout, None)

    def commit(self, staged: Staged) -> str:
        self.calls.append("commit")
        if self.error is not None:
            raise self.error
        return "block"

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append(name)


def faked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Snapshots, FakeGrid, list[float], list[Any]]:
    """Snapshots on a clock that only the test moves, and where cpu time is what it is told."""
    clock, told = [100.0], list[Any]()
    grid = FakeGrid(clock)
    monkeypatch.setattr(module.time, "thread_time", lambda: 0.0)
    memory = tmp_path / "memory" / "job-1" / "n0"
    made = Snapshots(tmp_path / "job", memory, lambda *said: told.append(said), grid, lambda: clock[0])  # type: ignore[arg-type]
    return made, grid, clock, told


def test_the_next_snapshot_waits_until_the_last_has_cost_little_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, grid, clock, told = faked(tmp_path, monkeypatch)
    grid.copy_s = 0.3
    made.write(5, {"step": 5})
    made.wait()
    assert told[0][:2] == (5, "memory") and told[0][4] == pytest.approx(0.3) and list(made.waits_s) == [told[0][4]]
    assert grid.calls[0] == "commit" and grid.calls[-1] == "reserve_next" and "back_off" not in grid.calls
    begun_s = clock[0]
    for after_s, due in ((19.9, False), (20.1, True)):  # half of three per cent: the other half is the disk's
        clock[0] = begun_s + after_s
        assert made.due() is due


def test_copies_to_disk_come_as_seldom_as_they_are_dear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _, clock, told = faked(tmp_path, monkeypatch)
    cpu_s, really = [0.0], module.write_flat

    def write_flat(*given: Any, **how: Any) -> int:
        cpu_s[0] += 0.15
        clock[0] += 0.001
        return really(*given, **how)

    monkeypatch.setattr(module, "write_flat", write_flat)
    monkeypatch.setattr(module.time, "thread_time", lambda: cpu_s[0])
    reached = []
    for step, after_s in enumerate((0.0, 5.0, 4.9, 0.2, 3.0)):
        clock[0] += after_s
        told.clear()
        made.write(step, {"step": step})
        made.wait()
        reached.append([where for _, where, *_ in told])
    once, both = ["memory"], ["memory", "disk"]
    assert reached == [both, once, once, both, once], "0.15 s of computing for every 10 s"


@pytest.mark.parametrize("wait", [False, True])
def test_a_snapshot_that_the_grid_refuses_is_a_file_in_memory_and_on_disk(
    wait: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, grid, _, told = faked(tmp_path, monkeypatch)
    grid.error = Unavailable("no answer")
    made.write(5, {"step": 5}, wait=wait)
    made.wait()
    assert grid.calls == ["commit", "back_off", "give_back"]
    assert sorted((step, where) for step, where, *_ in told) == [(5, "disk"), (5, "memory")]
    assert [(each.step, each.where, each.path.suffix) for each in made.find()] == [
        (5, "memory", ".block"), (5, "disk", ".block"),
    ]  # fmt: skip
    assert all(each.read() is not None for each in made.find())


def test_without_memory_for_a_copy_the_state_is_written_while_the_step_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, grid, _, _ = faked(tmp_path, monkeypatch)
    grid.error = MemoryError()
    made.write(5, {"step": 5})
    made.wait()
    assert grid.calls == ["back_off"]
    assert [(each.where, each.path.suffix) for each in made.find()] == [("memory", ".pt"), ("disk", ".pt")]


def test_who_leaves_for_good_has_it_on_disk_before_the_grid_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, grid, _, told = faked(tmp_path, monkeypatch)
    made.write(5, {"step": 5}, wait=True)
    assert [where for _, where, *_ in told] == ["disk", "memory"]
    assert "reserve_next" not in grid.calls and "drop_unnamed_blocks" not in grid.calls
    made.write(6, {"step": 6})
    made.wait()
    assert grid.calls.count("drop_unnamed_blocks") == 1 and grid.calls[-1] == "reserve_next"
    made.write(7, {"step": 7})
    made.wait()
    assert grid.calls.count("drop_unnamed_blocks") == 1, "once is enough"


def test_room_for_the_next_snapshot_is_given_back_by_ranks_that_do_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, grid, _, _ = faked(tmp_path, monkeypatch)
    made.begin_generation(writes=True)
    assert grid.calls == []
    made.begin_generation(writes=False)
    assert grid.calls == ["clear"]
