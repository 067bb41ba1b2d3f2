"""Runs Python from a sealed copy in memory where workers could otherwise change it: without root they may own its file.

A process reaches its own program by ``/proc/self/exe``, past all mounts of its sandbox, and could change the file's
mode for all users. So the host and its forks run from a copy in memory.
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
_MFD_EXEC = 0x10  # required by newer kernels, unknown to older ones


@dataclass(frozen=True, slots=True)
class Program:
    """What to execute, and with which descriptors and environment."""

    path: str
    descriptors: tuple[int, ...] = ()  # to be inherited
    environment: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def program(name: str) -> Iterator[Program]:
    """The program itself, or a sealed copy in memory if its file belongs to this user (never for root)."""
    file = Path(os.path.realpath(name))
    if os.geteuid() == 0 or file.stat().st_uid != os.geteuid():
        yield Program(name)
        return
    with sealed(file) as copy:
        yield copy


@contextlib.contextmanager
def sealed(file: Path) -> Iterator[Program]:
    """A sealed copy of the file in memory."""
    descriptor = _memory()
    try:
        with file.open("rb") as source, os.fdopen(os.dup(descriptor), "wb") as target:
            shutil.copyfileobj(source, target)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        beside = str(file.parent.parent / "lib")  # libraries are found relative to the program
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
