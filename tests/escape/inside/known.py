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

libc = ctypes.CDLL(None, use_errno=True)
ATTEMPTS: dict[str, Callable[[], Any]] = {}


def attempt(function: Callable[[], Any]) -> Callable[[], Any]:
    ATTEMPTS[function.__name__] = function
    return function


def call(name: str, *arguments: Any) -> int:
    """A C function that must not succeed; an OSError when it fails."""
    result = int(getattr(libc, name)(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def syscall(number: int, *arguments: Any) -> int:
    return call("syscall", ctypes.c_long(number), *arguments)


def others() -> Iterator[int]:
    """Every process number that could be somebody else's."""
    own = [path for path in glob.glob("/proc/[0-9]*/stat") if _of_this_sandbox(path)]
    mine = {int(task) for path in own for task in os.listdir(path.replace("/stat", "/task"))}  # and threads
    yield from (pid for pid in {*range(1, 400), *MAP["victim_pids"], *MAP["platform_pids"]} if pid not in mine)


def _of_this_sandbox(path: str) -> bool:
    try:
        return os.stat(path).st_uid == os.getuid()
    except OSError:
        return False
