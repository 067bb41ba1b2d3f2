"""Makes Python and the platform's folders reachable for tenants' users without opening a home folder.

Python often lies below a closed home (``/root`` is 0700). In a private mount namespace such a closed folder is covered
with an empty one that contains only the needed sub-folders. Nothing outside of this process changes, no mode is
touched, and the rest of the home is hidden from workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import fairlead
from fairlead.agent.sandbox import linux

_NOBODY = 65534
_ROUNDS = 8


def needed(home: Path | None) -> list[Path]:
    """The folders that a worker of another user must reach; without a home, those of Python only."""
    package = Path(fairlead.__file__).parent
    folders = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).parent, package]
    folders += [Path(entry) for entry in sys.path if entry and Path(entry).is_dir()]
    folders += [] if home is None else [home]
    folders.append(Path(os.path.realpath(sys.executable)).parent)
    both = [path for folder in folders for path in (folder.absolute(), Path(os.path.realpath(folder)))]
    return sorted(set(both), key=lambda path: (len(path.parts), path))


def closed_ancestor(path: Path) -> Path | None:
    """The outermost parent folder that other users may not traverse; None when there is none."""
    for ancestor in reversed(path.parents):
        if not ancestor.stat().st_mode & 0o001:
            return ancestor
    return None


def make_reachable(paths: Sequence[Path]) -> None:
    """Cover every closed parent folder in a private mount namespace; raises ``OSError`` when that fails."""
    if all(closed_ancestor(path) is None for path in paths):
        return
    linux.unshare_mounts()
    for _ in range(_ROUNDS):
        closed = next((found for path in paths if (found := closed_ancestor(path)) is not None), None)
        if closed is None:
            return
        _cover(closed, [path for path in paths if closed in path.parents])
    raise OSError(f"{paths[0]} remains unreachable for the tenants' users")


def _cover(closed: Path, inside: Iterable[Path]) -> None:
    """Mount an empty folder over the closed one and bind these sub-folders into it."""
    kept = [(path, os.open(path, os.O_PATH | os.O_DIRECTORY)) for path in inside]
    linux.mount("fairlead", str(closed), kind="tmpfs", flags=linux.MS_NOSUID | linux.MS_NODEV, data="mode=0755,size=1m")
    bound: list[Path] = []
    for path, descriptor in kept:
        if not any(parent in path.parents for parent in bound):
            before = os.umask(0o022)
            path.mkdir(parents=True, exist_ok=True)
            os.umask(before)
            linux.mount(f"/proc/self/fd/{descriptor}", str(path), flags=linux.MS_BIND | linux.MS_REC)
            bound.append(path)
        os.close(descriptor)


def problem(home: Path) -> str | None:
    """Why a tenant's user cannot run here, tried in a child process; None when it can."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.write(writing, (_try_as_stranger(home) or "").encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        text = answer.read().decode()
    os.waitpid(child, 0)
    return text or None


def _try_as_stranger(home: Path) -> str | None:
    try:
        make_reachable(needed(home))
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    except OSError as error:
        return f"Python cannot be made reachable for the tenants' users: {error}"
    ours = {home.absolute(), Path(os.path.realpath(home))}  # only needs to be traversable
    for path in needed(home):
        if not os.access(path, os.X_OK if path in ours else os.X_OK | os.R_OK):
            return f"the tenants' users cannot read {path}"
    return None
