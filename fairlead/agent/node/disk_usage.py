"""Measures a job's disk usage, including deleted open files; not fooled by links or deep folders."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.units import shown_size

MOST_FILES = 250_000  # measuring them takes about 2 s
DEEPEST = 128  # nested folders; deeper ones cannot be measured
RESERVE_BYTES = 32 << 20  # must be free for a worker to be started
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
DELETED = "deleted files that are still open"
_DELETED = " (deleted)"  # the kernel's suffix of their names


def is_full(error: OSError) -> bool:
    """True when the error means a full disk or quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def check_reserve(folder: Path) -> None:
    """Raise ENOSPC when less is free than the reserve kept for the platform."""
    found = os.statvfs(folder)
    if found.f_bavail * found.f_frsize < RESERVE_BYTES:
        raise OSError(errno.ENOSPC, f"less than {shown_size(RESERVE_BYTES)} are free on the disk")


@dataclass(slots=True)
class DiskUsage:
    """Disk usage of a job's folder, by its parts (output, logs, ...)."""

    bytes_by_part: dict[str, int] = field(default_factory=dict)
    files: int = 0
    problem: str | None = None  # why it cannot be measured

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes_by_part.values())

    def add(self, part: str, size: int) -> None:
        if size:
            self.bytes_by_part[part] = self.bytes_by_part.get(part, 0) + size

    def limit_problem(self, allowed_bytes: int, tenant: str) -> str | None:
        """Why the usage is over the limit, in one line with usage, limit and fix; None when it is not."""
        if self.problem is not None:
            return self.problem
        if self.files > MOST_FILES:
            return f"its folder has more than {MOST_FILES:,} files; write fewer, larger ones (an archive, a table)"
        if self.total_bytes <= allowed_bytes:
            return None
        name, size = max(self.bytes_by_part.items(), key=lambda part: part[1])
        return (
            f"its folder takes {shown_size(self.total_bytes)} of {shown_size(allowed_bytes)} allowed; the "
            f"largest part is {name} with {shown_size(size)}; write less, or ask an admin to raise the limit: "
            f"fairlead tenant update {tenant} --disk {shown_size(2 * self.total_bytes).replace(' ', '')}"
        )


class _Walk:
    """One walk through a folder; stops at too many files or a folder that cannot be opened."""

    def __init__(self, most_files: int) -> None:
        self.held, self._most_files = DiskUsage(), most_files
        self.linked: set[tuple[int, int]] = set()  # files with several names count once

    @property
    def is_stopped(self) -> bool:
        return self.held.files > self._most_files or self.held.problem is not None

    def count(self, part: str, found: os.stat_result) -> None:
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            if (found.st_dev, found.st_ino) in self.linked:
                return
            self.linked.add((found.st_dev, found.st_ino))
        self.held.files += 1
        self.held.add(part, found.st_blocks * 512)

    def count_below(self, folder: int, part: str) -> None:
        """Count all below this open folder and close it; bounded depth bounds the number of open descriptors."""
        stack: list[tuple[int, Iterator[os.DirEntry[str]]]] = [(folder, _entries(folder))]
        try:
            while stack and not self.is_stopped:
                here, entries = stack[-1]
                entry = next(entries, None)
                if entry is None:
                    os.close(stack.pop()[0])
                    continue
                found = _stat(entry.name, here)
                if found is None:
                    continue
                self.count(part, found)
                if stat.S_ISDIR(found.st_mode):
                    self._descend(stack, here, entry.name)
        finally:
            for descriptor, _ in stack:
                os.close(descriptor)

    def _descend(self, stack: list[tuple[int, Iterator[os.DirEntry[str]]]], here: int, name: str) -> None:
        if len(stack) >= DEEPEST:
            self.held.problem = f"its folder is nested more than {DEEPEST} levels deep; write into fewer levels"
            return
        descriptor = self.open(name, here)
        if descriptor is not None:
            stack.append((descriptor, _entries(descriptor)))

    def open(self, name: str, folder: int | None = None) -> int | None:
        """Open a folder; one that its owner made unreadable (to a platform without root) counts as a problem."""
        try:
            return os.open(name, _FLAGS, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            shown = Path(name).name
            self.held.problem = f"its folder {shown!r} cannot be read ({error.strerror}); keep it readable"
            return None


def measure(folder: Path, open_bytes: int = 0, most_files: int | None = None) -> DiskUsage:
    """Disk usage of the folder, following no links; counting stops beyond ``most_files``."""
    walk = _Walk(MOST_FILES if most_files is None else most_files)
    walk.held.add(DELETED, open_bytes)
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as parts:
        for part in parts:
            if walk.is_stopped:
                break
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found = part.stat(follow_symlinks=False)
                walk.count(part.name, found)
                if stat.S_ISDIR(found.st_mode) and (opened := walk.open(part.path)) is not None:
                    walk.count_below(opened, part.name)
    return walk.held


def deleted_bytes(pids: Iterable[int], device: int) -> int:
    """Bytes on this file system of deleted files that these processes have open or mapped."""
    sizes: dict[int, int] = {}
    for pid in pids:
        for path in (*_deleted_open(pid), *_deleted_mapped(pid)):
            with contextlib.suppress(OSError):  # it has just ended
                found = os.stat(path)  # noqa: PTH116 (half the time of a Path's, and there may be thousands)
                if found.st_dev == device and found.st_nlink == 0 and stat.S_ISREG(found.st_mode):
                    sizes[found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())


def _deleted_open(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if os.readlink(entry.path).endswith(_DELETED):  # noqa: PTH115 (as above)
                    yield entry.path


def _deleted_mapped(pid: int) -> Iterator[str]:
    """Deleted mapped files, from /proc/PID/maps: reading each of hundreds of map_files would be too slow."""
    with contextlib.suppress(OSError):  # it has just ended
        maps = Path(f"/proc/{pid}/maps").read_bytes()
        if _DELETED.encode() in maps:
            for line in maps.splitlines():
                if line.endswith(_DELETED.encode()):
                    yield f"/proc/{pid}/map_files/{_without_zeros(line.split(maxsplit=1)[0].decode())}"


def _without_zeros(addresses: str) -> str:
    """Convert addresses from /proc/PID/maps (zero-padded) to names in map_files (not padded)."""
    return "-".join(f"{int(address, 16):x}" for address in addresses.split("-"))


def _entries(folder: int) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from entries


def _stat(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:  # removed meanwhile
        return None
