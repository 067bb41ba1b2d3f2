"""A Python that those who run in it cannot change: without root, workers are of the user whom Python may belong to.

A process always gets at its own program by ``/proc/self/exe``, past every mount of its sandbox. There it could change
the mode of the program, for all on this machine. So the host runs from a copy in memory, and its forks with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_MFD_EXEC = 0x10  # newer kernels want to be told; older ones do not know the word


@dataclass(frozen=True, slots=True)
class Program:
    """What to start instead of the file of this name, and how."""

    path: str
    descriptors: tuple[int, ...] = ()  # to be passed on
    environment: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def program(name: str) -> Iterator[Program]:
    """The program as it is, or a sealed copy in memory if it belongs to this user (for root, nobody in a sandbox)."""
    file = Path(os.path.realpath(name))
    if os.geteuid() == 0 or file.stat().st_uid != os.geteuid():
        yield Program(name)
        return
    with sealed(file) as copy:
        yield copy


@contextlib.contextmanager
def sealed(file: Path) -> Iterator[Program]:
    """A copy that nobody can write, and whose mode means nothing to anybody."""
    descriptor = _memory()
    try:
        with file.open("rb") as source, os.fdopen(os.dup(descriptor), "wb") as target:
            shutil.copyfileobj(source, target)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        beside = str(file.parent.parent / "lib")  # where a program that looks beside itself would have looked
        before = os.environ.get("LD_LIBRARY_PATH")
        environment = {"LD_LIBRARY_PATH": beside if before is None else f"{before}:{beside}"}
        yield Program(f"/proc/self/fd/{descriptor}", (descriptor,), environment)
    finally:
        os.close(descriptor)


def _memory() -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create("python", flags | _MFD_EXEC)
    except OSError:
        return os.memfd_create("python", flags)
