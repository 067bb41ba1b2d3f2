"""Attempts to take more than was granted: of the machine, of time, and of the platform's trust."""

# An attacker calls the system as plainly as can be.
# ruff: noqa: PTH108, PTH110, PTH118

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from known import HOME, MAP, attempt, call


@attempt
def raise_the_limit_of_open_files() -> Any:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))
    return hard + 1


@attempt
def raise_the_limit_of_file_size() -> Any:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return resource.getrlimit(resource.RLIMIT_FSIZE)


_MB = 1 << 20


def _beyond_its_limit(take: Callable[[int], Any]) -> Any:
    """Bytes of the disk that a file took which may have a hundredth of them."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MB, _MB))
    file = os.open("larger", os.O_RDWR | os.O_CREAT)
    try:
        take(file)
        held = os.fstat(file).st_blocks * 512
    finally:
        os.unlink("larger")
    return held if held > 2 * _MB else None


@attempt
def take_room_beyond_the_end_of_a_file() -> Any:
    return _beyond_its_limit(lambda file: call("fallocate", file, 1, ctypes.c_long(0), ctypes.c_long(100 * _MB)))


@attempt
def take_room_beyond_the_end_of_a_file_by_an_older_request() -> Any:
    wanted = struct.pack("=hhiqqiI16x", 0, 0, 0, 0, 100 * _MB, 0, 0)
    return _beyond_its_limit(lambda file: fcntl.ioctl(file, 0x4030582A, wanted))


@attempt
def write_a_control_group() -> Any:
    for path in [*MAP["cgroups"], "/sys/fs/cgroup"]:
        for name in ("memory.limit_in_bytes", "memory.max", "cgroup.procs", "tasks"):
            if os.path.exists(os.path.join(path, name)):
                return os.open(os.path.join(path, name), os.O_WRONLY)
    return None


@attempt
def be_nicer_to_oneself() -> Any:
    return os.nice(-5)


@attempt
def run_in_real_time() -> Any:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    return "real time"


@attempt
def be_spared_by_the_out_of_memory_killer() -> Any:
    Path("/proc/self/oom_score_adj").write_text("-1000")
    return "spared"


@attempt
def lock_memory_without_end() -> Any:
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return hard if hard == resource.RLIM_INFINITY or hard > 1 << 30 else None


@attempt
def change_the_clock() -> Any:
    time.clock_settime(time.CLOCK_REALTIME, time.time())
    return "changed"


@attempt
def stay_when_the_gang_is_gone() -> Any:
    """Its heartbeat is looked for from outside."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(1, 32):
                if number not in (signal.SIGKILL, signal.SIGSTOP):
                    signal.signal(number, signal.SIG_IGN)
            os.execv(sys.executable, [sys.executable, "-c", "import time\nwhile True: time.sleep(1)", MAP["marker"]])
        os._exit(0)
    return None


@attempt
def take_the_place_of_ones_own_log() -> Any:
    """The platform writes the log: a link in its place must not be followed."""
    logs = Path(os.environ["FAIRLEAD_OUTPUT"]).parent / "logs"
    logs.rename(logs.with_name("moved"))
    return "moved"


@attempt
def leave_links_for_the_platform_to_follow() -> Any:
    """Read from outside, as the platform: a result must not contain what they point to."""
    output = Path(os.environ["FAIRLEAD_OUTPUT"])
    (output / "store").symlink_to(HOME / "fairlead.db")
    (output / "all").symlink_to(HOME)
    os.mkfifo(output / "pipe")
    return None
