"""Snapshots in the grid: what a step waits for is a copy, whoever comes next finds the newest whole one, all else is
a fallback that trains on."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairlead.errors import NotFound
from fairlead.grid import Grid
from fairlead.grid.values import TOKEN_VARIABLE, VARIABLE, BlockInfo, snapshot_label
from fairlead.training.snapshots import snapshotter as module
from fairlead.training.snapshots.flat_state import flat_state_from_parts, flatten_state, read_state
from fairlead.training.snapshots.grid_snapshots import GridSnapshots
from fairlead.training.snapshots.snapshot_files import StoredSnapshot
from fairlead.training.snapshots.snapshotter import Snapshots
from tests.training.conftest import MakeGrid

CPU = torch.device("cpu")
MB = 1 << 20
JOB = "job-1"


class Node:
    """A worker's view of its job's snapshots on one node, and what it was told."""

    def __init__(self, root: Path, name: str = "n0") -> None:
        self.memory = root / "memory" / JOB / name
        self.told: list[tuple[int, str, int, float, float]] = []
        self.snapshots = Snapshots(
            root / "job", self.memory, lambda *said: self.told.append(said), GridSnapshots(JOB, self.memory)
        )

    def write(self, step: int, state: dict[str, Any] | None = None, *, wait: bool = False) -> None:
        self.snapshots.write(step, state or {"step": step, "weights": torch.full((MB,), float(step))}, wait=wait)
        self.snapshots.wait()

    def found(self) -> list[tuple[int, str, str]]:
        return [(stored.step, stored.where, stored.path.suffix) for stored in self.snapshots.find()]

    def newest(self) -> dict[str, Any]:
        """As an agreement reads: the furthest that is whole."""
        for stored in self.snapshots.find():
            data = stored.read()
            if data is not None:
                return read_state(data, CPU)
        raise AssertionError("nothing can be read")


def blocks() -> list[BlockInfo]:
    grid = Grid.of_this_worker()
    assert grid is not None
    return [info for info in grid.blocks() if info.label == snapshot_label(JOB)]


# ---------------------------------------------------------------- the form of a state


def test_a_state_taken_apart_is_put_together_bit_by_bit() -> None:
    first = torch.nn.Conv2d(3, 8, 3)
    first.weight.data = first.weight.data.to(memory_format=torch.channels_last)
    model = torch.nn.Sequential(first, torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3, 3, 3)).sum().backward()
    optimizer.step()
    shared = torch.arange(7, dtype=torch.bfloat16)
    state = {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "twice": [shared, shared], "step": 3,
        "odd": (torch.empty(0, 2), torch.tensor(5), torch.zeros(4)[::2], torch.ones(1).expand(1 << 40)),
        "text": ("x", 1), "none": None, "sparse": torch.eye(3).to_sparse(),
    }  # fmt: skip
    flat = flatten_state(state)
    room, parts, place = memoryview(bytearray(sum(flat.lengths) + 64 * len(flat.lengths))), [], 0
    for length in flat.lengths:
        parts.append((place, length))
        place += -(-length // 64) * 64
    flat.write(room, parts)
    again = flat_state_from_parts(flat.meta, [room[begin : begin + length] for begin, length in parts]).state(CPU)
    for name, value in model.state_dict().items():
        assert torch.equal(again["model"][name], value) and again["model"][name].dtype == value.dtype
    assert again["model"]["0.weight"].stride() == first.weight.stride()
    assert again["model"]._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]
    assert again["optimizer"]["param_groups"] == optimizer.state_dict()["param_groups"]
    assert torch.equal(again["optimizer"]["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])
    assert again["twice"][0] is again["twice"][1] and torch.equal(again["twice"][0], shared)
    assert again["odd"][0].shape == (0, 2) and again["odd"][3].shape == (1 << 40,)
    assert (again["text"], again["none"], again["step"]) == (("x", 1), None, 3)
    assert torch.equal(again["sparse"].to_dense(), torch.eye(3))


def test_a_state_that_holds_code_is_not_opened() -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("true",)

    with pytest.raises(pickle.UnpicklingError):
        flatten_state({"evil": Evil()}).state(CPU)


# ---------------------------------------------------------------- in the grid


def test_a_snapshot_lies_in_the_grid_under_its_jobs_label_and_is_read_from_there(
    tmp_path: Path, make_grid: MakeGrid
) -> None:
    make_grid()
    node = Node(tmp_path)
    for step in (10, 20, 30):
        node.write(step)
    in_memory = [found for found in node.found() if found[1] == "memory"]
    assert in_memory == [(30, "memory", ".grid"), (20, "memory", ".grid")]
    assert len(blocks()) == 2 and {info.cost_s > 3600 for info in blocks()} == {True}
    other = Node(tmp_path)  # whoever restarts the job
    assert other.newest()["step"] == 30 and torch.equal(other.newest()["weights"], torch.full((MB,), 30.0))
    told = [said for said in node.told if said[1] == "memory"]
    assert [said[0] for said in told] == [10, 20, 30] and all(0 < said[4] <= said[3] for said in told)


def test_the_state_is_that_of_the_moment_however_it_changes_behind(tmp_path: Path, make_grid: MakeGrid) -> None:
    make_grid()
    node = Node(tmp_path)
    weights = torch.zeros(2 * MB)
    for step in range(1, 6):
        weights.fill_(step)
        node.snapshots.write(step, {"step": step, "weights": weights, "list": [step]})
        weights.fill_(-1.0)
        node.snapshots.wait()
        found = node.newest()
        assert found["step"] == step and found["list"] == [step] and bool((found["weights"] == step).all())


def test_a_state_that_grows_finds_room(tmp_path: Path, make_grid: MakeGrid) -> None:
    make_grid()
    node = Node(tmp_path)
    for step in range(1, 5):
        node.write(step, {"step": step, "history": torch.full((step * MB,), float(step))})
        assert node.newest()["history"].numel() == step * MB
    assert len(blocks()) == 2


def test_every_snapshot_of_a_small_state_reaches_the_disk_and_of_a_dear_one_some(
    tmp_path: Path, make_grid: MakeGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_grid()
    node = Node(tmp_path)
    monkeypatch.setattr("fairlead.training.snapshots.snapshotter.MIN_INTERVAL_S", 0.0)
    node.snapshots._disk_interval_s = 0.0
    node.write(1, {"step": 1})
    node.snapshots._disk_interval_s = 1000.0  # what it came to is more than what was waited
    node.write(2, {"step": 2})
    node.write(3, {"step": 3}, wait=True)
    assert [said[0] for said in node.told if said[1] == "disk"] == [1, 3]
    on_disk = [found for found in node.found() if found[1] == "disk"]
    assert on_disk == [(3, "disk", ".block"), (1, "disk", ".block")]


def test_the_disk_has_it_when_the_node_is_gone(tmp_path: Path, make_grid: MakeGrid) -> None:
    make_grid()
    node = Node(tmp_path)
    node.write(7, wait=True)
    for stored in node.memory.iterdir():
        stored.unlink()  # with its node
    node.snapshots._grid = None  # as a worker of a platform without grids sees it
    assert node.newest()["step"] == 7 and bool((node.newest()["weights"] == 7.0).all())


def test_another_node_reads_it_and_keeps_no_copy(tmp_path: Path, make_grid: MakeGrid) -> None:
    make_grid("n0")
    Node(tmp_path, "n0").write(5, wait=True)
    make_grid("n1")
    other = Node(tmp_path, "n1")
    (tmp_path / "job" / "snapshots" / "snapshot-5.block").unlink()
    assert other.newest()["step"] == 5
    assert not blocks()
    other.write(6)
    assert (5, "memory", ".grid") in other.found()  # until there are enough of its own
    other.write(7)
    assert [found[0] for found in other.found() if found[1] == "memory"] == [7, 6]


def test_a_damaged_block_gives_way_to_an_older_one(tmp_path: Path, make_grid: MakeGrid) -> None:
    make_grid()
    node = Node(tmp_path)
    node.write(1)
    node.write(2)
    grid = Grid.of_this_worker()
    assert grid is not None
    deadline = time.monotonic() + 30
    while not all(info.digest for info in blocks()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    from fairlead.training.snapshots.grid_snapshots import _block_of

    newest = _block_of(node.memory / "snapshot-2.grid")
    with grid.open(newest) as block:
        place = memoryview(block.parts()[1])
        offset = np.frombuffer(place, np.uint8).ctypes.data - grid._line.reading().address
    grid._line.writing().view(offset, 4)[:] = b"torn"
    del place
    (tmp_path / "job" / "snapshots" / "snapshot-2.block").unlink(missing_ok=True)
    assert node.newest()["step"] == 1


# ---------------------------------------------------------------- deaths

WRITER = """
import sys, torch, time
from pathlib import Path
from fairlead.training.snapshots.snapshotter import Snapshots
from fairlead.training.snapshots.grid_snapshots import GridSnapshots
memory = Path(sys.argv[1]) / "memory" / "job-1" / "n0"
snapshots = Snapshots(Path(sys.argv[1]) / "job", memory, lambda *said: None, GridSnapshots("job-1", memory))
weights = torch.zeros(4 << 20)
step = int(sys.argv[2])
while True:
    step += 1
    weights.fill_(step)
    snapshots.write(step, {"step": step, "weights": weights})
    print(step, flush=True)
"""


def test_a_worker_killed_at_any_moment_leaves_a_whole_snapshot_and_no_room_taken(
    tmp_path: Path, make_grid: MakeGrid
) -> None:
    alone = make_grid(quota=128 * MB)
    step = 0
    for turn in range(8):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(step)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        for _ in range(4):
            reached = int(process.stdout.readline())
        time.sleep(0.007 * turn)
        process.kill()
        process.wait()
        process.stdout.close()
        found = Node(tmp_path).newest()
        assert found["step"] >= reached - 2 and bool((found["weights"] == found["step"]).all())
        step = found["step"] + 5
    node = Node(tmp_path)
    node.write(step + 100)
    node.write(step + 101)
    node.snapshots.begin_generation(writes=False)
    with alone.connect() as grid:
        deadline = time.monotonic() + 30
        while grid.usage().used > 3 * 17 * MB or len(blocks()) != 2:  # what the dead had reserved or not noted is free
            assert time.monotonic() < deadline, (grid.usage(), blocks())
            time.sleep(0.05)


def test_the_grid_process_killed_on_the_way_costs_no_snapshot(tmp_path: Path, make_grid: MakeGrid) -> None:
    alone = make_grid()
    node = Node(tmp_path)
    node.write(1)
    for step in range(2, 6):
        pid = alone.supervisor.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        node.write(step)
        assert node.newest()["step"] == step
    assert (5, "memory", ".grid") in node.found()


# ---------------------------------------------------------------- where it does not go into the grid


def test_without_room_in_the_grid_it_is_written_as_a_file_and_said_once(
    tmp_path: Path, make_grid: MakeGrid, capsys: pytest.CaptureFixture[str]
) -> None:
    make_grid(quota=2 * MB)
    node = Node(tmp_path)
    for step in (1, 2, 3):
        node.write(step)
        assert node.newest()["step"] == step
    assert {suffix for _, where, suffix in node.found() if where == "memory"} <= {".block", ".pt"}
    assert capsys.readouterr().out.count("snapshots cannot go into the grid") == 1
    assert not blocks()


def test_room_that_others_hold_is_waited_for_with_files(
    tmp_path: Path, make_grid: MakeGrid, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.training.snapshots.grid_snapshots.BACKOFF_S", 0.0)
    alone = make_grid(quota=16 * MB)
    node = Node(tmp_path)
    with alone.connect() as grid:
        held = grid.open(grid.put([bytes(14 * MB)], kind="data", meta={}))
        node.write(1)
        assert (1, "memory", ".block") in node.found() and node.newest()["step"] == 1
        held.close()
        del held
        node.write(2)
    assert (2, "memory", ".grid") in node.found() and node.newest()["step"] == 2
    said = capsys.readouterr().out
    assert said.count("cannot go into the grid") == 1 and said.count("go into the grid again") == 1


def test_with_little_room_the_older_snapshot_goes_before_any_file_is_written(
    tmp_path: Path, make_grid: MakeGrid
) -> None:
    make_grid(quota=10 * MB)  # two of them, and not three
    node = Node(tmp_path)
    for step in range(1, 6):
        node.write(step)
        assert (step, "memory", ".grid") in node.found() and node.newest()["step"] == step


def test_a_snapshot_outlives_data_that_can_be_made_again(tmp_path: Path, make_grid: MakeGrid) -> None:
    alone = make_grid(quota=32 * MB, spill_bytes=0)
    node = Node(tmp_path)
    node.write(1)
    node.snapshots.begin_generation(writes=False)
    with alone.connect() as grid:
        for _ in range(30):
            grid.put([bytes(3 * MB)], kind="data", meta={}, label="dataset/x", cost_s=60.0)
        assert grid.usage().evictions > 10
    (tmp_path / "job" / "snapshots" / "snapshot-1.block").unlink()
    assert node.newest()["step"] == 1


def test_a_worker_without_a_grid_writes_files_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    node = Node(tmp_path)
    node.write(1)
    assert node.found() == [(1, "memory", ".pt"), (1, "disk", ".pt")] and node.newest()["step"] == 1
    assert node.told[0][3] == node.told[0][4] > 0  # the step waited for all of it


def test_a_note_of_a_block_that_is_gone_is_passed_over(tmp_path: Path, make_grid: MakeGrid) -> None:
    make_grid()
    node = Node(tmp_path)
    node.write(1)
    (node.memory / "snapshot-9.grid").write_text('{"block": "0000"}')
    (node.memory / "snapshot-8.grid").write_text("nonsense")
    assert node.newest()["step"] == 1


def test_blocks_of_a_job_that_is_forgotten_are_dropped(tmp_path: Path, make_grid: MakeGrid) -> None:
    alone = make_grid()
    Node(tmp_path).write(1)
    with alone.connect() as grid:
        other = grid.put([bytes(MB)], kind="data", meta={}, label="dataset/x")
        with alone._lock:
            alone.supervisor.discard(snapshot_label(JOB))
        deadline = time.monotonic() + 30
        while blocks():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        grid.open(other).close()


def test_where_memory_is_encrypted_the_state_is_sealed_in_it(tmp_path: Path, make_grid: MakeGrid) -> None:
    alone = make_grid(encrypted=True)
    node = Node(tmp_path)
    for step in (1, 2, 3):
        node.write(step, {"step": step, "weights": torch.full((MB,), 1234.5), "text": "open sesame" * 10})
    assert (3, "memory", ".grid") in node.found() and node.newest()["text"].startswith("open sesame")
    with alone.connect() as grid:
        arena = grid._line.reading().view(0, grid.usage().warm)
        assert b"open sesame" not in bytes(arena)


def test_a_snapshot_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    import io
    import zlib

    buffer = io.BytesIO()
    torch.save({"step": 4}, buffer)
    data = buffer.getvalue()
    (folder / "snapshot-4.pt").write_bytes(data + b"fairlead-crc32:" + f"{zlib.crc32(data):08x}".encode())
    found = StoredSnapshot(4, folder / "snapshot-4.pt", "disk").read()
    assert found is not None and read_state(found, CPU) == {"step": 4}


def test_a_reader_of_a_block_that_is_gone_is_told(tmp_path: Path, make_grid: MakeGrid) -> None:
    make_grid()
    node = Node(tmp_path)
    node.write(1)
    grid = Grid.of_this_worker()
    assert grid is not None
    grid.drop(blocks()[0].id)
    shelf = GridSnapshots(JOB, node.memory)
    with pytest.raises(NotFound):
        shelf.read(node.memory / "snapshot-1.grid")


def test_on_disk_a_large_state_has_the_grids_own_hash_and_a_damaged_one_is_seen(
    tmp_path: Path, make_grid: MakeGrid
) -> None:
    make_grid()
    node = Node(tmp_path)
    node.write(1)
    node.snapshots._last_disk_s = float("-inf")
    node.write(2)  # the first was staged beside
    file = tmp_path / "job" / "snapshots" / "snapshot-2.block"
    assert b"fairlead-blake2b:" in file.read_bytes()[-90:]
    found = StoredSnapshot(2, file, "disk").read()
    assert found is not None and read_state(found, CPU)["step"] == 2
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    assert StoredSnapshot(2, file, "disk").read() is None


@pytest.mark.parametrize(("cost_s", "pause_s"), [(0.0, 1.0), (0.01, 1.0), (0.3, 10.0), (3.0, 100.0)])
def test_snapshots_without_a_grid_take_three_hundredths_of_the_time_at_most(
    cost_s: float, pause_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, told = [100.0], list[tuple[int, str, int, float, float]]()
    really = module.write_file

    def write_file(*given: Any, **how: Any) -> int:
        now_s[0] += cost_s if not told else 0.0
        return really(*given, **how)

    monkeypatch.setattr(module, "write_file", write_file)
    memory = tmp_path / "memory" / JOB / "n0"
    snapshots = Snapshots(tmp_path / "job", memory, lambda *said: told.append(said), clock=lambda: now_s[0])
    assert not snapshots.due()
    now_s[0] += 1.0
    assert snapshots.due()
    snapshots.write(5, {"step": 5})
    snapshots.wait()
    step, where, _, took_s, waited_s = told[0]
    assert (step, where, took_s, waited_s) == (5, "memory", pytest.approx(cost_s), pytest.approx(cost_s))
    assert list(snapshots.waits_s) == [pytest.approx(cost_s)]
    written_s = now_s[0]
    for after_s, due in ((pause_s - 0.01, False), (pause_s + 0.01, True)):
        now_s[0] = written_s + after_s
        assert snapshots.due() is due
    snapshots.begin_generation()
    assert not snapshots.due(), "the first one of a generation is not due at once"
    now_s[0] += pause_s + 0.01
    assert snapshots.due()


def test_memory_keeps_two_steps_and_disk_two_and_the_furthest_is_found_first(tmp_path: Path) -> None:
    memory = tmp_path / "memory" / JOB / "n0"
    snapshots = Snapshots(tmp_path / "job", memory, lambda *_: None)
    for step in (1, 2, 3, 4):
        snapshots.write(step, {"step": step}, wait=step in (1, 2, 4))
        snapshots.wait()
    found = [(stored.step, stored.where) for stored in snapshots.find()]
    assert found[0] == (4, "memory") and found[1] == (4, "disk")
    assert [step for step, where in found if where == "memory"] == [4, 3]
    assert len([step for step, where in found if where == "disk"]) == 2


def test_a_snapshot_in_parts_that_took_three_seconds_is_not_due_again_for_a_hundred(tmp_path: Path) -> None:
    now_s = [0.0]
    memory = tmp_path / "memory" / "job" / "n0"
    snapshots = Snapshots(tmp_path / "job", memory, lambda *said: None, clock=lambda: now_s[0])

    def save(folder: Path) -> None:
        (folder / "0.distcp").write_bytes(b"part")
        now_s[0] += 3.0

    now_s[0] = 10.0
    assert snapshots.due()
    snapshots.write_sharded(1, save, lambda file: file.write(b"place") and None)
    dues = []
    for now_s[0] in (13.0, 100.0, 112.9, 113.1):
        dues.append(snapshots.due())
    assert dues == [False, False, False, True], "three per cent of the time"
