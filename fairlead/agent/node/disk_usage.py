"""Measures what a job holds on the disk, as the one who must not be fooled: by links, by depth, by deleted files."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.units import shown_size

MOST_FILES = 250_000  # a look at all of them takes about two seconds
DEEPEST = 128  # folders in folders: what lies deeper could not be measured
RESERVE_BYTES = 32 << 20  # what must be left on the disk for a worker to be started
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
DELETED = "deleted files that are still open"
_DELETED = " (deleted)"  # how the kernel marks their names


def is_full(error: OSError) -> bool:
    """Whether it failed for want of room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def check_reserve(folder: Path) -> None:
    """Raise the error of a full disk where so little is left that it is the platform's own."""
    found = os.statvfs(folder)
    if found.f_bavail * found.f_frsize < RESERVE_BYTES:
        raise OSError(errno.ENOSPC, f"less than {shown_size(RESERVE_BYTES)} are left on the disk")


@dataclass(slots=True)
class DiskUsage:
    """What a job's folder holds, by its parts (output, logs, ...)."""

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
        """Why this is too much, in one line with what is used, what is allowed and what to do; None: it is not."""
        if self.problem is not None:
            return self.problem
        if self.files > MOST_FILES:
            return f"its folder holds more than {MOST_FILES:,} files; write fewer, larger ones (an archive, a table)"
        if self.total_bytes <= allowed_bytes:
            return None
        name, size = max(self.bytes_by_part.items(), key=lambda part: part[1])
        return (
            f"its folder holds {shown_size(self.total_bytes)}, and {shown_size(allowed_bytes)} are allowed; the "
            f"biggest part is {name} with {shown_size(size)}; write less, or let an admin allow more: "
            f"fairlead tenant update {tenant} --disk {shown_size(2 * self.total_bytes).replace(' ', '')}"
        )


class _Walk:
    """One walk through a folder; ends early where nobody could follow."""

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
        """Count all below this open folder, which is closed in the end; depth is bounded, so descriptors are, too."""
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
            self.held.problem = f"its folder is more than {DEEPEST} folders deep; write into fewer levels"
            return
        descriptor = self.open(name, here)
        if descriptor is not None:
            stack.append((descriptor, _entries(descriptor)))

    def open(self, name: str, folder: int | None = None) -> int | None:
        """This folder, open; one that its owner closed to us (without root) is a problem of its owner's."""
        try:
            return os.open(name, _FLAGS, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            shown = Path(name).name
            self.held.problem = f"its folder {shown!r} cannot be looked into ({error.strerror}); leave it readable"
            return None


def measure(folder: Path, open_bytes: int = 0, most_files: int | None = None) -> DiskUsage:
    """What the folder holds on the disk, without following any link; more files than the most are not counted."""
    walk = _Walk(MOST_FILES if most_files is None else most_files)
    walk.held.add(DELETED, open_bytes)
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as parts:
        for part in parts:
            if walk.is_stopped:
                break
            with contextlib.suppress(FileNotFoundError):  # it has just been removed
                found = part.stat(follow_symlinks=False)
                walk.count(part.name, found)
                if stat.S_ISDIR(found.st_mode) and (opened := walk.open(part.path)) is not None:
                    walk.count_below(opened, part.name)
    return walk.held


def deleted_bytes(pids: Iterable[int], device: int) -> int:
    """What files that these processes hold open or mapped take on this file system although they were deleted."""
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
    """From the one file that lists all mappings: a look at each of hundreds would cost a fork bomb's neighbour."""
    with contextlib.suppress(OSError):  # it has just ended
        maps = Path(f"/proc/{pid}/maps").read_bytes()
        if _DELETED.encode() in maps:
            for line in maps.splitlines():
                if line.endswith(_DELETED.encode()):
                    yield f"/proc/{pid}/map_files/{_without_zeros(line.split(maxsplit=1)[0].decode())}"


def _without_zeros(addresses: str) -> str:
    """Mappings are listed with their addresses padded, and filed without."""
    return "-".join(f"{int(address, 16):x}" for address in addresses.split("-"))


def _entries(folder: int) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from entries


def _stat(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:  # it has just been removed
        return None
