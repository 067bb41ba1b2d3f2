"""Turns a fork of the platform into a process of the tenant: enters the sandbox and drops all rights.

The order matters. Rights are used from the widest to the narrowest and dropped right after use: the gang's
network, control group and limits, the job's folders (from outside, where they are visible);
supplementary groups; the namespaces, whose entering needs rights over them; the folders in their places; the user,
while still in the outer user namespace, so that root never enters a tenant's; the user namespace last, whose
owner the tenant's user is, and inside it one of the worker's own; then all capabilities, for good; then the filter. No
byte of the tenant is read before the end.

A user namespace of its own puts the worker beneath the sandbox's holder, which has the same user: the kernel lets no
process trace, read or change one in an outer namespace. So the holder needs none of the worker's limits, and a process
inside cannot keep the sandbox from ending with its holder.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from fairlead.agent.embedded import gang_network
from fairlead.agent.node import cgroups
from fairlead.agent.sandbox import linux, seccomp
from fairlead.agent.sandbox.job_mounts import JobMounts
from fairlead.agent.sandbox.rlimits import Limits
from fairlead.agent.sandbox.sandbox import Namespaces

_SPARED_LAST = "500"  # oom_score_adj: workers are killed before the platform
_HELD = re.compile(r"^Cap(?:Inh|Prm|Eff|Amb):\t0*[1-9a-f][0-9a-f]*$", re.MULTILINE)


class StillPrivileged(Exception):
    """The process still has rights that it must not have, and must end."""


def apply_limits(group: cgroups.Group, limits: Limits) -> None:
    """Apply control group and limits to the calling process; needs the outer mount namespace."""
    if group.folders:
        group.enter()
    Path("/proc/self/oom_score_adj").write_text(_SPARED_LAST)
    if os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)  # reset the fork server's priority
    limits.impose()


def join_gang(namespaces: Namespaces, records: Path, job: str) -> None:
    """Enter the gang's network, or make the sandbox's own the gang's; needs the outer mount namespace."""
    own = namespaces.take_network()
    gang_network.join(records, job, own)
    os.close(own)


def enter_sandbox(namespaces: Namespaces, uid: int | None, mounts: JobMounts | None = None) -> None:
    """Become a process of the tenant inside its sandbox, after attaching the job's mounts there."""
    root = os.geteuid() == 0
    linux.forbid_proc_access()
    if root:
        os.setgroups([])
    outer, (user, kind) = namespaces.others[:-1], namespaces.others[-1]
    for namespace, each in outer:
        linux.enter(namespace, each)
    os.chdir("/")
    if mounts is not None and uid:
        mounts.unpack(uid)
    if root:
        _become(uid)
    linux.enter(user, kind)
    namespaces.close()
    linux.own_user_namespace()
    linux.drop_capabilities()
    _finish_setup()
    if root:  # without root its parent is not the fork server yet; it ends with its sandbox
        linux.die_with_parent()
    check(uid)
    _check_below()
    linux.filter_calls(seccomp.program())


def enter_user(uid: int | None, parent: int) -> None:
    """Without a sandbox: become a process of the tenant's user, if it has one."""
    linux.forbid_proc_access()
    if os.geteuid() == 0:
        os.setgroups([])
        _become(uid)
    linux.clear_capabilities()  # without root those over the platform's own user namespace
    _finish_setup()
    linux.die_with_parent()
    if os.getppid() != parent:  # it ended before die_with_parent()
        os._exit(1)
    check(uid)


def _become(uid: int | None) -> None:
    if not uid:
        raise StillPrivileged("a worker never runs as root")
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _finish_setup() -> None:
    linux.no_new_privileges()
    linux.allow_proc_access()
    os.umask(0o077)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def check(uid: int | None) -> None:
    """Verify that the process has dropped all rights; raises StillPrivileged."""
    status = Path("/proc/self/status").read_text()
    held = _HELD.findall(status)
    if held or "\nNoNewPrivs:\t1\n" not in status or 0 in (*os.getresuid(), *os.getresgid()):
        raise StillPrivileged(f"the worker would keep rights: {held or 'root'}")
    if uid is not None and {*os.getresuid(), *os.getresgid()} != {uid}:
        raise StillPrivileged(f"the worker is user {os.getuid()}, not {uid}")
    if uid is not None and os.getgroups():
        raise StillPrivileged(f"the worker is in the groups {os.getgroups()}")


def _check_below() -> None:
    """Verify that the sandbox's holder cannot be changed from inside."""
    try:
        os.close(os.open("/proc/1/mem", os.O_RDWR))
    except PermissionError:
        return
    raise StillPrivileged("the worker could change the process that holds its sandbox")


def close_all_but(kept: Sequence[int]) -> None:
    """Close all other descriptors of the platform."""
    begin = 3
    for descriptor in (*sorted(kept), os.sysconf("SC_OPEN_MAX")):
        os.closerange(begin, descriptor)
        begin = descriptor + 1
