"""The state of a job outside its workers: written to memory at once, copied to disk behind the training's back."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fairlead.training.channel import log

KEEP = 2
MIN_INTERVAL_S = 1.0
MAX_COST = 0.03  # part of the time that snapshots may take
_TRAILER = b"fairlead-crc32:"
_PARTS, _PLACE, _SIZES = ".parts", "place.pt", "sizes.json"
_TRAILER_BYTES = len(_TRAILER) + 8

Report = Callable[[int, str, int, float], None]
"""Told of each snapshot: step, memory or disk, bytes, seconds."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A snapshot file; whether it is whole is known only after reading it."""

    step: int
    path: Path
    where: str

    def read(self) -> bytes | None:
        """The state, or None if the file is gone, cut off or damaged (its checksum says so)."""
        file = self.path / _PLACE if self.path.suffix == _PARTS else self.path
        try:
            data = file.read_bytes()
        except OSError as error:
            log(
                f"snapshot {self.path.name} in {self.where} cannot be read ({error.strerror}); looking for an older one"
            )
            return None
        body, trailer = data[:-_TRAILER_BYTES], data[-_TRAILER_BYTES:]
        if trailer != _trailer(zlib.crc32(body)):
            log(f"snapshot {self.path.name} in {self.where} is damaged; looking for an older one")
            return None
        if file is not self.path and not _complete(self.path):
            log(f"snapshot {self.path.name} in {self.where} lacks parts; looking for an older one")
            return None
        return body


class Snapshots:
    """Where one job's snapshots are. Only rank 0 writes; every worker may read."""

    def __init__(self, folder: Path, memory_folder: Path, report: Report) -> None:
        self._disk = folder / "snapshots"
        self._memory = memory_folder
        self._report = report
        self._copier: threading.Thread | None = None
        self._interval_s = MIN_INTERVAL_S
        self._parts_step = -1  # of the last that was written in parts
        self._last_s = time.monotonic()

    def find(self) -> list[Stored]:
        """All that is there, the furthest first, memory before disk."""
        found = [stored for folder in self._memories() for stored in _list(folder, "memory")]
        found += _list(self._disk, "disk")
        return sorted(found, key=lambda s: (s.step, s.where == "memory"), reverse=True)

    def _memories(self) -> set[Path]:
        """This node's memory and what can be seen of the others' (layout: memory root / job / node)."""
        others = self._memory.parent.glob("*/")
        return {self._memory, *(path for path in others if os.access(path, os.R_OK | os.X_OK))}

    def rearm(self) -> None:
        """A generation begins: its first snapshot is not due at once, when everybody waits for the next step."""
        self._last_s = time.monotonic()

    def due(self) -> bool:
        """Whether it is time for the next one: not too often, and not too dear."""
        return time.monotonic() - self._last_s >= self._interval_s and not self._copying()

    def write(self, step: int, save: Callable[[Any], None], *, wait: bool = False) -> None:
        """Put the state into memory and start its copy to disk; with ``wait`` it is on disk on return."""
        start = time.monotonic()
        name = f"snapshot-{step}.pt"
        self._finish_copy()
        try:
            size = _write(self._memory / name, save, sync=False)
        except OSError as error:
            log(f"no snapshot in memory ({error.strerror}); writing to disk")
            self._to_disk(step, self._disk / name, save)
        else:
            self._report(step, "memory", size, time.monotonic() - start)
            self._copy(step, self._memory / name, wait)
        self._last_s = time.monotonic()
        self._interval_s = max(MIN_INTERVAL_S, (self._last_s - start) / MAX_COST)

    def parts(self, step: int) -> Path:
        """Where the parts of this step's snapshot lie once they are written."""
        return self._disk / f"snapshot-{step}{_PARTS}"

    def write_parts(self, step: int, save: Callable[[Path], None], describe: Callable[[Any], None] | None) -> None:
        """By all ranks at once, on disk. Who has ``describe``, which says where it stands, makes it valid."""
        if self._parts_step == step:
            return
        start, path = time.monotonic(), self.parts(step)
        beside = path.with_name(f".{path.name}.tmp")
        beside.mkdir(parents=True, exist_ok=True)
        save(beside)
        self._parts_step = step
        if describe is not None:
            sizes = {file.name: file.stat().st_size for file in beside.iterdir()}
            (beside / _SIZES).write_text(json.dumps(sizes))
            whole = sum(sizes.values()) + _write(beside / _PLACE, describe, sync=True)
            if path.exists():
                shutil.rmtree(path)
            beside.replace(path)
            _drop_old(self._disk)
            self._report(step, "disk", whole, time.monotonic() - start)
        self._last_s = time.monotonic()
        self._interval_s = max(MIN_INTERVAL_S, (self._last_s - start) / MAX_COST)

    def finish(self) -> None:
        """Let a copy under way come to its end."""
        self._finish_copy()

    def _copy(self, step: int, source: Path, wait: bool) -> None:
        file = source.open("rb")  # held open: a newer snapshot may push this one out meanwhile
        self._copier = threading.Thread(
            target=self._copy_held, args=(step, file, source.name), name="fairlead-snapshot", daemon=True
        )
        self._copier.start()
        if wait:
            self._finish_copy()

    def _copy_held(self, step: int, file: BinaryIO, name: str) -> None:
        def pieces(out: Any) -> None:
            while piece := file.read(1 << 22):
                out.write(piece)

        with file:
            try:
                self._to_disk(step, self._disk / name, pieces, trailer=False)
            except OSError as error:
                log(f"snapshot {name} did not reach the disk: {error.strerror}")

    def _to_disk(self, step: int, path: Path, save: Callable[[Any], None], *, trailer: bool = True) -> None:
        start = time.monotonic()
        size = _write(path, save, sync=True, trailer=trailer)
        self._report(step, "disk", size, time.monotonic() - start)

    def _copying(self) -> bool:
        return self._copier is not None and self._copier.is_alive()

    def _finish_copy(self) -> None:
        if self._copier is not None:
            self._copier.join()
            self._copier = None


class _Checked:
    """Counts and checksums what is written through it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size, self.crc = 0, 0

    def write(self, data: Any) -> int:
        self.crc = zlib.crc32(data, self.crc)
        self.size += len(data)
        self._file.write(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def _write(path: Path, save: Callable[[Any], None], *, sync: bool, trailer: bool = True) -> int:
    """Write beside, then rename: a file with the right name is a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            checked = _Checked(file)
            save(checked)
            if trailer:
                file.write(_trailer(checked.crc))
            if sync:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    _drop_old(path.parent)
    return checked.size


def _drop_old(folder: Path) -> None:
    for old in sorted(_list(folder, ""), key=lambda s: s.step)[:-KEEP]:
        if old.path.suffix == _PARTS:
            shutil.rmtree(old.path, ignore_errors=True)
        else:
            old.path.unlink(missing_ok=True)


def _complete(parts: Path) -> bool:
    """Whether all files of a snapshot in parts are there and as long as they were."""
    try:
        sizes: dict[str, int] = json.loads((parts / _SIZES).read_text())
        return all((parts / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _trailer(crc: int) -> bytes:
    return _TRAILER + f"{crc:08x}".encode()


def _list(folder: Path, where: str) -> Iterator[Stored]:
    for path in (*folder.glob("snapshot-*.pt"), *folder.glob(f"snapshot-*{_PARTS}")):
        number = path.stem.removeprefix("snapshot-")
        if number.isdecimal():
            yield Stored(int(number), path, where)
