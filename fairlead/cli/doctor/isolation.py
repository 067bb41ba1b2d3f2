"""Checks the isolation of tenants by trying each mechanism in a child process."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fairlead.agent.node import cgroups
from fairlead.agent.sandbox import isolation_probe, linux
from fairlead.agent.sandbox import seccomp as filters
from fairlead.agent.sandbox.sandbox import TOOLS
from fairlead.cli.doctor.finding import Finding, fail, graded, in_child, ok, warn

NAMESPACES = {
    "user": (linux.CLONE_NEWUSER, "separate owners of files and processes"),
    "pid": (linux.CLONE_NEWPID, "jobs cannot see each other's processes"),
    "net": (linux.CLONE_NEWNET, "workers reach only their own gang"),
    "mount": (linux.CLONE_NEWNS, "jobs see only their own files"),
}
_ALLOW = (
    "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces=15000, "
    "kernel.apparmor_restrict_unprivileged_userns=0), or give the container these privileges"
)


def control_groups(home: Path) -> Iterator[Finding]:
    """Create a control group with limits and remove it."""
    fix = "run as root, or delegate a control group to this user (systemd: Delegate=yes)"
    group = cgroups.create_node_group(f"doctor-{os.getpid()}", "try", {"cpu": 1.0, "memory": 64e6})
    try:
        version = group.version
    finally:
        cgroups.discard(group)
    if not version:
        yield warn("control groups", "cannot be created: CPU and memory limits apply only per process", fix)
        return
    usable = [name for name in ("cpu", "memory", "pids") if _controller(version, name)]
    text = f"version {version}, usable for {', '.join(usable)}"
    fix = "enable the missing controllers on the kernel command line or in the parent group"
    yield graded("control groups", text, fix, fails=False, warns=len(usable) < 3)


def _controller(version: int, name: str) -> bool:
    if version == 1:
        return any(name in line.split(":")[1].split(",") for line in Path("/proc/self/cgroup").read_text().splitlines())
    held = [line.partition("::")[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"]
    places = [Path("/sys/fs/cgroup") / path.lstrip("/") for path in (*held, "")]
    return any(name in (place / "cgroup.controllers").read_text().split() for place in places
               if (place / "cgroup.controllers").exists())  # fmt: skip


def namespaces(home: Path) -> Iterator[Finding]:
    first = linux.CLONE_NEWUSER if os.geteuid() else 0  # without root, the others need a user namespace
    wrong = {name: in_child(partial(linux.unshare, first | kind)) for name, (kind, _) in NAMESPACES.items()}
    if not any(wrong.values()):
        yield ok("namespaces", f"{', '.join(NAMESPACES)} can be created")
    for name, why in wrong.items():
        if why is not None:
            yield fail("namespaces", f"no {name} namespace ({NAMESPACES[name][1]}): {why}", _ALLOW)


def bubblewrap(home: Path) -> Iterator[Finding]:
    """Build the sandbox of a worker as a tenant's user and test it from inside.

    Uses the home's file system if it is writable, because some file systems cannot be mounted in a sandbox.
    """
    install = "apt install bubblewrap, or dnf install bubblewrap"
    if shutil.which("bwrap", path=TOOLS) is None:
        yield fail("bubblewrap", "is not installed: tenants cannot be isolated in a sandbox", install)
        return
    with contextlib.ExitStack() as trial:
        writable = home.is_dir() and os.access(home, os.W_OK)
        place = home if writable else Path(trial.enter_context(tempfile.TemporaryDirectory(prefix="doctor-")))
        if not writable:
            place.chmod(0o711)  # like a home: tenants' users pass through it
        wrong = isolation_probe.sandbox_problem(place)
    if wrong is None:
        yield ok("bubblewrap", "builds a sandbox with its own processes, network and files")
    elif "not installed" in wrong:
        yield fail("bubblewrap", f"cannot build a sandbox: {wrong}", "install util-linux")
    else:
        yield fail("bubblewrap", f"cannot build a sandbox: {wrong}", _ALLOW)


def seccomp(home: Path) -> Iterator[Finding]:
    if not filters.supported():
        yield fail("seccomp", f"system calls of {os.uname().machine} are unsupported", "use x86_64 or aarch64")
        return
    wrong = in_child(_filter)
    if wrong is not None:
        text = f"system call filters do not work: {wrong}"
        yield fail("seccomp", text, "use a kernel with CONFIG_SECCOMP_FILTER")
    else:
        yield ok("seccomp", "system call filters work")


def _filter() -> None:
    linux.no_new_privileges()
    linux.filter_calls(filters.program())
