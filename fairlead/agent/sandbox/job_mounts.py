"""Shows a worker its job's own folders in a sandbox that was built before anybody knew of the job.

Only for root. The worker's process, not yet the tenant's, takes the folders along as mounts that are nowhere, and puts
them in their places once it is inside. No path is followed through a link: the job's /tmp is among them, and another
member of its gang may be writing there.
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

    trees: tuple[tuple[int, str], ...]  # with where they belong
    folder: int  # which of them is the job's own

    def unpack(self, uid: int) -> None:
        """Put them into the sandbox whose mount namespace this process is in, and close its root to changes."""
        for tree, target in self.trees:
            with _acting_as(uid):  # nobody else can make a folder in a tenant's own file system
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
    """Take along the job's folder, its /tmp and its memory; call it where they can be seen, as root."""
    sources = ((str(Path(folder) / "tmp"), "/tmp"), (folder, folder), (memory, memory))
    trees = tuple((linux.clone_mount(source), target) for source, target in sources)
    return JobMounts(trees, trees[1][0])


def _way(target: str) -> int:
    """The folder at this path, made where it is missing."""
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
        with contextlib.suppress(FileExistsError):  # another member of the gang, in the /tmp that they share
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
