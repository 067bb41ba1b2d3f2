"""What the attacker knows, paths and numbers of its victim, and how it calls the system."""

# An attacker calls the system as plainly as can be.
# ruff: noqa: PTH116, PTH207, PTH208

from __future__ import annotations

import ctypes
import glob
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MAP: dict[str, Any] = json.loads(Path(__file__).with_name("map.json").read_text())  # what the attacker knows
HOME, VICTIM = Path(MAP["home"]), Path(MAP["victim_folder"])
CANARY = re.compile(rb"fl-canary-[0-9a-f]{32}")  # the shape of the victim's secret: the pattern does not match itself

PARENT = os.getppid()  # of the job, not of one attempt

libc = ctypes.CDLL(None, use_errno=True)
ATTEMPTS: dict[str, Callable[[], Any]] = {}


_NUMBERS = {  # on x86_64 and aarch64
    "clone": (56, 220), "clone3": (435, 435), "add_key": (248, 217), "bpf": (321, 280), "io_uring_setup": (425, 425),
    "open_by_handle_at": (304, 265), "pidfd_getfd": (438, 438), "process_vm_readv": (310, 270),
    "userfaultfd": (323, 282), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
}  # fmt: skip


def attempt(function: Callable[[], Any]) -> Callable[[], Any]:
    ATTEMPTS[function.__name__] = function
    return function


def call(name: str, *arguments: Any) -> int:
    """A C function that must not succeed; an OSError when it fails."""
    result = int(getattr(libc, name)(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def syscall(name: str, *arguments: Any) -> int:
    """A call by its number, which the C library has no function for."""
    on_x86, on_arm = _NUMBERS[name]
    number = {"x86_64": on_x86, "aarch64": on_arm}[os.uname().machine]
    whole = (ctypes.c_long(each) if isinstance(each, int) else each for each in (number, *arguments))  # not half of it
    return call("syscall", *whole)


def others() -> Iterator[int]:
    """Every process number that could be somebody else's."""
    own = [path for path in glob.glob("/proc/[0-9]*/stat") if _of_this_sandbox(path)]
    mine = {task for path in own for task in _threads(path.replace("/stat", "/task"))}
    yield from (pid for pid in {*range(1, 400), *MAP["victim_pids"], *MAP["platform_pids"]} if pid not in mine)


def from_any(get: Callable[[int], Any]) -> Any:
    """What can be got of the victim's processes or of the first, wherever that works first."""
    why: OSError | None = None
    for pid in (*MAP["victim_pids"], 1):
        try:
            return get(pid)
        except OSError as error:
            why = error
    raise why or OSError("there is nobody")


def _threads(folder: str) -> list[int]:
    try:
        return [int(task) for task in os.listdir(folder)]
    except OSError:  # it has ended meanwhile
        return []


def _of_this_sandbox(path: str) -> bool:
    try:
        return os.stat(path).st_uid == os.getuid()
    except OSError:
        return False
