"""Snapshots as files: what is damaged is passed over with its reason, and a file with the right name is complete."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairlead.errors import TooLarge, Unavailable
from fairlead.grid.layout import Layout
from fairlead.training.snapshots import grid_snapshots, snapshot_files
from fairlead.training.snapshots.flat_state import FlatState, flatten_state, read_state
from fairlead.training.snapshots.grid_snapshots import BACKOFF_S, MOST_BACKOFF_S, GridSnapshots
from fairlead.training.snapshots.snapshot_files import (
    StoredSnapshot,
    complete_shards,
    drop_old_snapshots,
    list_snapshots,
    write_file,
    write_flat,
    write_hashed,
)

STATE = {"step": 3, "weights": torch.arange(5.0)}


def save(file: Any) -> None:
    torch.save(STATE, file)


def block() -> tuple[memoryview, int]:
    """The bytes of a block that holds the state, and how many of them are its header."""
    flat = flatten_state(STATE)
    layout = Layout(flat.lengths, flat.meta)
    view = np.empty(layout.nbytes, np.uint8).data
    flat.write(view, layout.parts)
    layout.finish(view)
    return view, len(layout.header)


def whole_file(folder: Path) -> Path:
    write_file(folder / "snapshot-3.pt", save, sync=False)
    return folder / "snapshot-3.pt"


def flat_file(folder: Path) -> Path:
    write_flat(folder / "snapshot-3.block", *block(), sync=True)
    return folder / "snapshot-3.block"


def hashed_file(folder: Path) -> Path:
    view, header = block()
    write_hashed(folder / "snapshot-3.block", view, header, hashlib.blake2b(view, digest_size=32).hexdigest())
    return folder / "snapshot-3.block"


def stored(path: Path) -> StoredSnapshot:
    return StoredSnapshot(3, path, "disk")


FORMS = [whole_file, flat_file, hashed_file]


@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_every_form_is_read_as_it_was_written(form: Callable[[Path], Path], tmp_path: Path) -> None:
    found = stored(form(tmp_path)).read()
    assert found is not None
    state = read_state(found, torch.device("cpu"))
    assert state["step"] == 3 and torch.equal(state["weights"], STATE["weights"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("damage", ["first", "middle", "cut", "empty"])
def test_a_damaged_file_of_any_form_is_passed_over_and_named(
    form: Callable[[Path], Path], damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = form(tmp_path)
    data = bytearray(path.read_bytes())
    if damage in ("first", "middle"):
        data[0 if damage == "first" else len(data) // 3] ^= 1
    path.write_bytes({"cut": data[:-1], "empty": b""}.get(damage, data))
    assert stored(path).read() is None
    assert f"snapshot {path.name} in disk" in capsys.readouterr().out


def test_a_file_that_is_gone_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert stored(tmp_path / "snapshot-3.pt").read() is None
    assert "cannot be read (No such file or directory); looking for an older one" in capsys.readouterr().out


# ---------------------------------------------------------------- shards


def shards(folder: Path) -> Path:
    place = folder / "snapshot-3.parts"
    place.mkdir()
    for rank in (0, 1):
        (place / f"__{rank}.distcp").write_bytes(bytes(100 + rank))
    assert complete_shards(place, save) == 201 + (place / "place.pt").stat().st_size - snapshot_files._TRAILER_BYTES
    return place


def test_shards_are_a_snapshot_once_all_of_them_are_there_as_long_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = shards(tmp_path)
    assert isinstance(stored(place).read(), bytes)
    (place / "__0.distcp").write_bytes(bytes(99))
    assert stored(place).read() is None and "lacks shards" in capsys.readouterr().out
    (place / "__0.distcp").write_bytes(bytes(100))
    assert stored(place).read() is not None
    (place / "__1.distcp").unlink()
    assert stored(place).read() is None


@pytest.mark.parametrize("content", [None, b"no json", b'{"__9.distcp": 1}'])
def test_shards_whose_sizes_are_unknown_are_no_snapshot(content: bytes | None, tmp_path: Path) -> None:
    place = shards(tmp_path)
    if content is None:
        (place / "sizes.json").unlink()
    else:
        (place / "sizes.json").write_bytes(content)
    assert stored(place).read() is None


def test_shards_without_the_progress_that_completes_them_are_no_snapshot(tmp_path: Path) -> None:
    place = shards(tmp_path)
    (place / "place.pt").unlink()
    assert stored(place).read() is None


# ---------------------------------------------------------------- listing, dropping, writing


def test_only_files_named_as_snapshots_are_listed(tmp_path: Path) -> None:
    for name in ("snapshot-7.pt", "snapshot-12.block", "snapshot-3.grid", "snapshot-x.pt", "snapshot-4.txt",
                 "snapshot--1.pt", ".snapshot-5.pt.17.tmp", "other-6.pt"):  # fmt: skip
        (tmp_path / name).touch()
    (tmp_path / "snapshot-9.parts").mkdir()
    assert sorted((each.step, each.where) for each in list_snapshots(tmp_path, "disk")) == [
        (3, "disk"), (7, "disk"), (9, "disk"), (12, "disk"),
    ]  # fmt: skip
    assert list(list_snapshots(tmp_path / "none", "disk")) == []


class Notes:
    """The blocks that notes name, which are dropped before their notes."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def read(self, note: Path) -> FlatState | None:
        return None

    def drop(self, note: Path) -> None:
        assert note.exists()
        self.dropped.append(note.name)


def test_the_two_newest_steps_stay_in_all_their_forms_and_older_ones_go(tmp_path: Path) -> None:
    for name in ("snapshot-9.pt", "snapshot-10.pt", "snapshot-10.grid", "snapshot-11.block", "snapshot-2.grid"):
        (tmp_path / name).touch()
    (tmp_path / "snapshot-8.parts").mkdir()
    (tmp_path / "snapshot-8.parts" / "x").touch()
    notes = Notes()
    drop_old_snapshots(tmp_path, notes)
    assert {path.name for path in tmp_path.iterdir()} == {"snapshot-10.pt", "snapshot-10.grid", "snapshot-11.block"}
    assert notes.dropped == ["snapshot-2.grid"]


def test_a_note_is_read_only_where_there_is_a_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = tmp_path / "snapshot-3.grid"
    note.touch()
    assert StoredSnapshot(3, note, "memory").read() is None
    assert "lies in the grid, and this worker has none" in capsys.readouterr().out
    assert StoredSnapshot(3, note, "memory", Notes()).read() is None
    assert "is damaged" in capsys.readouterr().out
    StoredSnapshot(3, note, "memory").remove()
    assert not note.exists()


def test_the_folder_of_a_snapshot_is_made_when_it_is_written(tmp_path: Path) -> None:
    assert stored(whole_file(tmp_path / "new" / "folder")).read() is not None


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = whole_file(tmp_path)
    before = path.read_bytes()

    def fails(file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_file(path, fails, sync=False)
    assert path.read_bytes() == before and [each.name for each in tmp_path.iterdir()] == [path.name]


def test_what_goes_to_disk_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[list[str]] = []
    monkeypatch.setattr(snapshot_files.os, "fsync", lambda _: synced.append([each.name for each in tmp_path.iterdir()]))
    for form, times in ((whole_file, 0), (flat_file, 1), (hashed_file, 1)):
        path = form(tmp_path)
        assert len(synced) == times and all(path.name not in names for names in synced)
        path.unlink()
        synced.clear()
    shards(tmp_path)
    assert len(synced) == 1, "the progress completes the shards"


# ---------------------------------------------------------------- back-off of the grid


def test_a_grid_that_fails_is_left_alone_twice_as_long_each_time_up_to_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [1000.0]
    monkeypatch.setattr(grid_snapshots.time, "monotonic", lambda: now[0])
    monkeypatch.setenv(grid_snapshots.VARIABLE, "somewhere")
    grid = GridSnapshots("job", tmp_path)
    assert grid.usable
    for wait_s in (BACKOFF_S, 2 * BACKOFF_S, 4 * BACKOFF_S, 8 * BACKOFF_S, 16 * BACKOFF_S, 32 * BACKOFF_S,
                   MOST_BACKOFF_S, MOST_BACKOFF_S):  # fmt: skip
        grid.back_off(Unavailable("no answer"))
        now[0] += wait_s - 0.5
        assert not grid.usable
        now[0] += 0.5
        assert grid.usable
    assert capsys.readouterr().out.count("cannot go into the grid (no answer)") == 1
    grid.back_off(TooLarge("more than the quota"))
    now[0] = 1e12
    assert not grid.usable, "a state that can never fit is not tried again"


def test_a_worker_without_a_grid_does_not_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(grid_snapshots.VARIABLE, raising=False)
    assert not GridSnapshots("job", tmp_path).usable
