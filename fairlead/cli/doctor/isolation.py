"""How tenants can be kept apart and within limits here: found out by trying, each time in a process of its own."""

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
    "user": (linux.CLONE_NEWUSER, "files and processes belong to nobody else"),
    "pid": (linux.CLONE_NEWPID, "jobs do not see each other's processes"),
    "net": (linux.CLONE_NEWNET, "a gang reaches itself only"),
    "mount": (linux.CLONE_NEWNS, "jobs see no other files"),
}
_ALLOW = (
    "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces=15000, "
    "kernel.apparmor_restrict_unprivileged_userns=0), or in a container run it with the rights for it"
)


def control_groups(home: Path) -> Iterator[Finding]:
    """By making one with limits and removing it."""
    fix = "run as root, or delegate a control group to this user (systemd: Delegate=yes)"
    group = cgroups.create_node_group(f"doctor-{os.getpid()}", "try", {"cpu": 1.0, "memory": 64e6})
    try:
        version = group.version
    finally:
        cgroups.discard(group)
    if not version:
        yield warn("control groups", "none can be made: only single processes are limited in cpu and memory", fix)
        return
    kept = [name for name in ("cpu", "memory", "pids") if _controller(version, name)]
    text = f"version {version}, usable for {', '.join(kept)}"
    fix = "enable the controllers that are missing at the kernel's command line or in the parent group"
    yield graded("control groups", text, fix, fails=False, warns=len(kept) < 3)


def _controller(version: int, name: str) -> bool:
    if version == 1:
        return any(name in line.split(":")[1].split(",") for line in Path("/proc/self/cgroup").read_text().splitlines())
    held = [line.partition("::")[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"]
    places = [Path("/sys/fs/cgroup") / path.lstrip("/") for path in (*held, "")]
    return any(name in (place / "cgroup.controllers").read_text().split() for place in places
               if (place / "cgroup.controllers").exists())  # fmt: skip


def namespaces(home: Path) -> Iterator[Finding]:
    first = linux.CLONE_NEWUSER if os.geteuid() else 0  # without root a user namespace comes first
    wrong = {name: in_child(partial(linux.unshare, first | kind)) for name, (kind, _) in NAMESPACES.items()}
    if not any(wrong.values()):
        yield ok("namespaces", f"{', '.join(NAMESPACES)} can be made")
    for name, why in wrong.items():
        if why is not None:
            yield fail("namespaces", f"no {name} namespace ({NAMESPACES[name][1]}): {why}", _ALLOW)


def bubblewrap(home: Path) -> Iterator[Finding]:
    """By building the very sandbox that workers get, as a tenant's user would, and looking around inside.

    With the home's own file system, where that can be written: not every one can be shown inside.
    """
    install = "install it: apt install bubblewrap, or dnf install bubblewrap"
    if shutil.which("bwrap", path=TOOLS) is None:
        yield fail("bubblewrap", "is not installed: tenants cannot be kept apart by a sandbox", install)
        return
    with contextlib.ExitStack() as trial:
        there = home.is_dir() and os.access(home, os.W_OK)
        place = home if there else Path(trial.enter_context(tempfile.TemporaryDirectory(prefix="doctor-")))
        if not there:
            place.chmod(0o711)  # as a home is: tenants' users pass through it
        wrong = isolation_probe.sandbox_problem(place)
    if wrong is None:
        yield ok("bubblewrap", "builds a sandbox with its own processes, network and files")
    elif "not installed" in wrong:
        yield fail("bubblewrap", f"cannot build a sandbox: {wrong}", "install util-linux")
    else:
        yield fail("bubblewrap", f"cannot build a sandbox: {wrong}", _ALLOW)


def seccomp(home: Path) -> Iterator[Finding]:
    if not filters.supported():
        yield fail("seccomp", f"the calls of {os.uname().machine} are not known", "use x86_64 or aarch64")
        return
    wrong = in_child(_filter)
    if wrong is not None:
        text = f"a filter of calls cannot be set: {wrong}"
        yield fail("seccomp", text, "use a kernel with CONFIG_SECCOMP_FILTER")
    else:
        yield ok("seccomp", "a filter of calls can be set")


def _filter() -> None:
    linux.no_new_privileges()
    linux.filter_calls(filters.program())
