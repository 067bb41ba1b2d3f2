"""Checks the machine: Python, torch, shared memory, limits, clock and port."""

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
COMPARE_S = 0.2  # how long wall time is compared with monotonic time
MAX_DRIFT_S = 0.05
_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)


def python(home: Path) -> Iterator[Finding]:
    found = f"{platform.python_version()} at {sys.executable}"
    fix = "use Python 3.11 or newer"
    yield graded("python", found, fix, fails=sys.version_info < (3, 11), warns=False)
    if sys.platform != "linux":
        yield fail("system", f"{platform.system()} has no namespaces and control groups", "run Fairlead on Linux")
    else:
        yield ok("system", f"Linux {platform.release()} on {platform.machine()}, {os.cpu_count()} cores")


def torch(home: Path) -> Iterator[Finding]:
    """Import torch in a child process: it takes seconds, and the command line never loads it."""
    script = "import torch; from torch import distributed as d; print(torch.__version__, d.is_gloo_available())"
    fix = "install it into this environment: pip install torch"
    try:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=TORCH_S)
    except subprocess.TimeoutExpired:
        yield fail("torch", f"was not imported within {TORCH_S:.0f} s", "check for a slow disk or too little memory")
        return
    if done.returncode:
        yield fail("torch", (done.stderr.strip().splitlines() or ["cannot be imported"])[-1][:300], fix)
        return
    version, gloo = done.stdout.split()
    if gloo != "True":
        yield fail("torch", f"{version} has no gloo backend, which gangs need to communicate", fix)
    else:
        yield ok("torch", f"{version}, with gloo")


def shared_memory(home: Path) -> Iterator[Finding]:
    place = Path("/dev/shm")
    if not place.is_dir():
        yield warn("shared memory", "/dev/shm is missing; snapshots are kept on disk", "mount a tmpfs on /dev/shm")
        return
    room = os.statvfs(place)
    whole, free = room.f_frsize * room.f_blocks, room.f_frsize * room.f_bavail
    text = f"/dev/shm has {size(free)} free of {size(whole)}"
    fix = "enlarge it: mount -o remount,size=50% /dev/shm; in a container: --shm-size 8g"
    yield graded("shared memory", text, fix, fails=free < 128e6, warns=whole < 1e9 or free < 0.1 * whole)


def limits(home: Path) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    fix = "raise nofile in /etc/security/limits.conf, or LimitNOFILE= of the service"
    low = hard != resource.RLIM_INFINITY and hard < 65_536
    short = "; the default of 65536 per tenant process is out of reach" if low else ""
    yield graded("open files", f"{soft}, hard limit {most}{short}", fix, fails=soft < 512, warns=soft < 1024 or low)
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    text = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    few = soft != resource.RLIM_INFINITY and os.geteuid() != 0
    fix = "raise nproc in /etc/security/limits.conf, or TasksMax= of the service"
    yield graded("processes", text, fix, fails=few and soft < 256, warns=few and soft < 4096)


def clock(home: Path) -> Iterator[Finding]:
    """Check that wall time is steady, synchronised and not behind the newest file of the home."""
    wall_s, steady_s = time.time(), time.monotonic()
    time.sleep(COMPARE_S)
    drift_s = (time.time() - wall_s) - (time.monotonic() - steady_s)
    newest_s = _newest(home)
    fix = "use a time service: timedatectl set-ntp true, or chronyd"
    if abs(drift_s) > MAX_DRIFT_S:
        yield fail("clock", f"jumped by {drift_s:+.2f} s within the check", fix)
    elif newest_s is not None and newest_s - time.time() > 60:
        behind = duration(newest_s - time.time())
        yield fail("clock", f"is {behind} behind the newest file in the home: it was set back", fix)
    else:
        synchronised = _synchronised()
        if synchronised is None:
            yield ok("clock", "steady; synchronisation unknown")
        elif synchronised:
            yield ok("clock", "steady and synchronised")
        else:
            yield warn("clock", "steady but not synchronised; leases and budgets depend on it", fix)


def _newest(home: Path) -> float | None:
    try:
        return max((entry.stat().st_mtime for entry in home.iterdir()), default=None)
    except OSError:
        return None


def _synchronised() -> bool | None:
    """Whether the kernel reports a synchronised clock (adjtimex); None if unknown."""
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
                yield ok("port", f"{PORT} is used by this platform")
            else:
                fix = "nothing to do if any port will do; else use --port, or stop the program on that port"
                yield warn(
                    "port", f"the default port {PORT} is in use ({error.strerror}); fairlead up takes a free one", fix
                )
        else:
            yield ok("port", f"{PORT} is free")
