"""The machine: Python, torch, shared memory, limits, the clock and the port."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fairlead.cli.doctor.finding import Finding, fail, graded, ok, warn
from fairlead.cli.output import duration, size

TORCH_S = 180.0
WATCH_S = 0.2  # how long the two clocks are compared
ODD_S = 0.05
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)


def python(home: Path) -> Iterator[Finding]:
    found = f"{platform.python_version()} at {sys.executable}"
    fix = "use Python 3.11 or newer"
    yield graded("python", found, fix, fails=sys.version_info < (3, 11), warns=False)
    if sys.platform != "linux":
        yield fail("system", f"{platform.system()} has no namespaces and no control groups", "run it on Linux")
    else:
        yield ok("system", f"Linux {platform.release()} on {platform.machine()}, {os.cpu_count()} cores")


def torch(home: Path) -> Iterator[Finding]:
    """In a child: it takes seconds, and the command line never loads it."""
    script = "import torch; from torch import distributed as d; print(torch.__version__, d.is_gloo_available())"
    fix = "install it into this environment: pip install torch"
    try:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=TORCH_S)
    except subprocess.TimeoutExpired:
        yield fail("torch", f"was not imported within {TORCH_S:.0f} s", "look for a slow disk or too little memory")
        return
    if done.returncode:
        yield fail("torch", (done.stderr.strip().splitlines() or ["cannot be imported"])[-1][:300], fix)
        return
    version, gloo = done.stdout.split()
    if gloo != "True":
        yield fail("torch", f"{version} comes without gloo, by which gangs talk", fix)
    else:
        yield ok("torch", f"{version}, with gloo")


def shared_memory(home: Path) -> Iterator[Finding]:
    place = Path("/dev/shm")
    if not place.is_dir():
        yield warn("shared memory", "there is no /dev/shm; snapshots are kept on disk", "mount a tmpfs on /dev/shm")
        return
    room = os.statvfs(place)
    whole, free = room.f_frsize * room.f_blocks, room.f_frsize * room.f_bavail
    text = f"/dev/shm has {size(free)} free of {size(whole)}"
    fix = "make it larger: mount -o remount,size=50% /dev/shm; in a container: --shm-size 8g"
    yield graded("shared memory", text, fix, fails=free < 128e6, warns=whole < 1e9 or free < 0.1 * whole)


def limits(home: Path) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    fix = "raise nofile in /etc/security/limits.conf, or LimitNOFILE= of the service"
    low = hard != resource.RLIM_INFINITY and hard < 65_536
    short = "; tenants cannot be given the usual 65536" if low else ""
    yield graded("open files", f"{soft}, at most {most}{short}", fix, fails=soft < 512, warns=soft < 1024 or low)
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    text = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    few = soft != resource.RLIM_INFINITY and os.geteuid() != 0
    fix = "raise nproc in /etc/security/limits.conf, or TasksMax= of the service"
    yield graded("processes", text, fix, fails=few and soft < 256, warns=few and soft < 4096)


def clock(home: Path) -> Iterator[Finding]:
    """Whether wall time goes evenly, whether it is kept right, and whether it was set back since the platform wrote."""
    wall_s, steady_s = time.time(), time.monotonic()
    time.sleep(WATCH_S)
    odd_s = (time.time() - wall_s) - (time.monotonic() - steady_s)
    newest_s = _newest(home)
    fix = "let a time service keep it: timedatectl set-ntp true, or chronyd"
    if abs(odd_s) > ODD_S:
        yield fail("clock", f"jumped by {odd_s:+.2f} s while it was looked at", fix)
    elif newest_s is not None and newest_s - time.time() > 60:
        behind = duration(newest_s - time.time())
        yield fail("clock", f"is {behind} behind what was written in the home: it was set back", fix)
    else:
        synchronised = _synchronised()
        if synchronised is None:
            yield ok("clock", "goes evenly; whether it is synchronised cannot be known here")
        elif synchronised:
            yield ok("clock", "goes evenly and is synchronised")
        else:
            yield warn("clock", "goes evenly, but nothing keeps it synchronised; leases and budgets go by it", fix)


def _newest(home: Path) -> float | None:
    try:
        return max((entry.stat().st_mtime for entry in home.iterdir()), default=None)
    except OSError:
        return None


def _synchronised() -> bool | None:
    """What the kernel says of its clock (adjtimex); None where it says nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "adjtimex"):
        return None
    words = (ctypes.c_long * 64)()  # struct timex; asking changes nothing when its first word, modes, is 0
    state = libc.adjtimex(ctypes.byref(words))
    return None if state < 0 else state != _UNSYNCHRONISED


def port(home: Path) -> Iterator[Finding]:
    from fairlead.cli.commands.up import PORT
    from fairlead.sdk.profile import alive, read

    found = read(home)
    own = found is not None and alive(found.pid) and found.url.endswith(f":{PORT}")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError as error:
            if own:
                yield ok("port", f"{PORT} is this platform's")
            else:
                fix = "none, if any port will do: fairlead up takes a free one; else --port, or end what listens there"
                yield warn("port", f"{PORT}, the usual one, is not free ({error.strerror})", fix)
        else:
            yield ok("port", f"{PORT} is free")
