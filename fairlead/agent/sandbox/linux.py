"""The few Linux calls that Python's own modules do not offer."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import signal
import socket
import struct
from pathlib import Path

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 15, 36, 38
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, PR_SET_TIMERSLACK, _PR_CAP_AMBIENT = 22, 24, 29, 47
_SECCOMP_MODE_FILTER, _PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
_CAPABILITY_VERSION_3 = 0x20080522
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # calls that have these numbers on every machine
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH, _OPEN_TREE_CLONE = -100, 0x100, 0x1000, 1
_FROM_EMPTY_PATH, _TO_EMPTY_PATH, _ATTR_NOSUID, _ATTR_NODEV = 0x04, 0x40, 2, 4
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _prctl(option: int, value: int, what: str) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), what)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends; call it after dropping privileges, which resets it."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, "PR_SET_PDEATHSIG")


def no_new_privileges() -> None:
    """From here on not even a set-user-id program gives rights back."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")


def allow_proc_access() -> None:
    """Give /proc/self back to a process that changed its user (the kernel hands it to root)."""
    _prctl(_PR_SET_DUMPABLE, 1, "PR_SET_DUMPABLE")


def forbid_proc_access() -> None:
    """Let no other process of the same user look into or trace this one, until it owns its entries again."""
    _prctl(_PR_SET_DUMPABLE, 0, "PR_SET_DUMPABLE")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none gets away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def set_process_name(name: str) -> None:
    """Give the process a name of its own in ``ps`` and ``top`` (15 bytes are shown): forks look all alike otherwise."""
    text = ctypes.create_string_buffer(name.encode()[:15])
    _check(_libc.prctl(_PR_SET_NAME, text, 0, 0, 0), "PR_SET_NAME")


def set_timer_slack(nanoseconds: int) -> None:
    """Let the kernel wake this process, and all that it starts, up to this much late, so that many wake at once."""
    _prctl(PR_SET_TIMERSLACK, nanoseconds, "PR_SET_TIMERSLACK")


def unshare_mounts() -> None:
    """Give this process mounts of its own: what it mounts, nobody outside sees."""
    unshare(CLONE_NEWNS)
    mount("none", "/", flags=MS_REC | MS_PRIVATE)


def mount(source: str, target: str, *, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    arguments = [None if text is None else text.encode() for text in (source, target, kind)]
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), None if data is None else data.encode()), f"mount {target}")


def clone_mount(folder: str) -> int:
    """The folder as a mount of its own that is nowhere yet, without devices and set-user-id: a descriptor of it."""
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_SYMLINK_NOFOLLOW)
    tree = int(_libc.syscall(_OPEN_TREE, _AT_FDCWD, folder.encode(), flags))
    _check(min(tree, 0), f"open_tree {folder}")
    wanted = struct.pack("=QQQQ", _ATTR_NOSUID | _ATTR_NODEV, 0, 0, 0)
    try:
        _check(_libc.syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, wanted, len(wanted)), f"mount_setattr {folder}")
    except OSError:
        os.close(tree)
        raise
    return tree


def move_mount(tree: int, place: int) -> None:
    """Mount what was detached, perhaps in another mount namespace, on the folder behind this descriptor."""
    flags = _FROM_EMPTY_PATH | _TO_EMPTY_PATH
    _check(_libc.syscall(_MOVE_MOUNT, tree, b"", place, b"", ctypes.c_uint(flags)), "move_mount")


@functools.cache
def can_move_mounts() -> bool:
    """Whether this kernel, and this process's rights, allow the two above."""
    try:
        os.close(clone_mount("/"))
    except OSError:
        return False
    return True


def unshare(kinds: int) -> None:
    """Leave these namespaces for fresh ones."""
    _check(_libc.unshare(ctypes.c_int(kinds)), "unshare")


def enter(namespace: int, kind: int) -> None:
    """Join the namespace behind the descriptor, which must be of this kind; of processes, only children to come do."""
    _check(_libc.setns(ctypes.c_int(namespace), ctypes.c_int(kind)), "setns")


def drop_capabilities() -> None:
    """Hold no capability in any of the five sets, and let no program bring one back."""
    for number in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) != 0:
            code = ctypes.get_errno()
            if code != errno.EINVAL:  # which says that this kernel has no more of them
                raise OSError(code, f"PR_CAPBSET_DROP: {os.strerror(code)}")
            break
    clear_capabilities()


def clear_capabilities() -> None:
    """Hold none from now on; what may be gained by a program is bounded elsewhere."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, "PR_CAP_AMBIENT")
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, bytes(24)), "capset")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def own_user_namespace() -> None:
    """Go into a fresh user namespace as the same user as before: its owner, with all capabilities in it."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    allow_proc_access()
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path("/proc/self", name).write_text(text)


def filter_calls(program: bytes) -> None:
    """Bind this process and all it starts to the seccomp filter, for good."""
    code = ctypes.create_string_buffer(program, len(program))
    whole = _Program(len(program) // 8, ctypes.addressof(code))
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(whole), 0, 0), "PR_SET_SECCOMP")


def bring_up_loopback() -> None:
    """Bring up ``lo`` in the present network namespace: a fresh one has nothing else."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        (flags,) = struct.unpack_from("=16xh", fcntl.ioctl(probe, _SIOCGIFFLAGS, struct.pack("=16sh22x", b"lo", 0)))
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("=16sh22x", b"lo", flags | _IFF_UP))
