"""Mounts a job's folders into a sandbox that was built before the job was known.

For root only. The worker's process, still privileged, takes the folders along as detached mounts and attaches them once
it is inside. It follows no links: the job's /tmp is one of the folders, and another member of the gang may be writing
there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fairlead.agent.sandbox import linux

_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class JobMounts:
    """A job's folders on their way into a sandbox."""

    trees: tuple[tuple[int, str], ...]  # detached mounts and their targets
    folder: int  # the mount of the job's own folder

    def unpack(self, uid: int) -> None:
        """Attach the mounts in the sandbox that this process has entered, and remount its root read-only."""
        for tree, target in self.trees:
            with _acting_as(uid):  # only the tenant's user can create folders in the sandbox's root
                place = _way(target)
            linux.move_mount(tree, place)
            os.close(place)
        self._cover_logs()
        self.close()
        shut = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
        linux.mount("none", "/", flags=shut)

    def _cover_logs(self) -> None:
        logs = os.open("logs", _WAY, dir_fd=self.folder)
        flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_RDONLY
        linux.mount("tmpfs", f"/proc/self/fd/{logs}", kind="tmpfs", flags=flags, data="mode=0000,size=4k")
        os.close(logs)

    def close(self) -> None:
        for tree, _ in self.trees:
            os.close(tree)


def pack(folder: str, memory: str) -> JobMounts:
    """Clone the mounts of the job's folder, /tmp and memory; call it as root, outside of the sandbox."""
    sources = ((str(Path(folder) / "tmp"), "/tmp"), (folder, folder), (memory, memory))
    trees = tuple((linux.clone_mount(source), target) for source, target in sources)
    return JobMounts(trees, trees[1][0])


def _way(target: str) -> int:
    """Open the folder at this path, creating missing parts."""
    here = os.open("/", _WAY)
    for name in Path(target).parts[1:]:
        further = _open(name, here)
        os.close(here)
        here = further
    return here


def _open(name: str, folder: int) -> int:
    try:
        return os.open(name, _WAY, dir_fd=folder)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):  # made by another member of the gang in the shared /tmp
            os.mkdir(name, 0o755, dir_fd=folder)
        return os.open(name, _WAY, dir_fd=folder)


@contextlib.contextmanager
def _acting_as(uid: int) -> Iterator[None]:
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
