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
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # the same numbers on every architecture
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
    """Have the kernel kill this process when its parent ends; call it after a change of user, which resets it."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, "PR_SET_PDEATHSIG")


def no_new_privileges() -> None:
    """Set no_new_privs: set-user-id programs gain nothing."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")


def allow_proc_access() -> None:
    """Make /proc/self belong to the process's user again after a change of user."""
    _prctl(_PR_SET_DUMPABLE, 1, "PR_SET_DUMPABLE")


def forbid_proc_access() -> None:
    """Deny other processes of the same user to trace this one, until allow_proc_access()."""
    _prctl(_PR_SET_DUMPABLE, 0, "PR_SET_DUMPABLE")


def adopt_orphans() -> None:
    """Become the parent of all orphaned descendants (child subreaper)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def set_process_name(name: str) -> None:
    """Set the name shown by ``ps`` and ``top`` (15 bytes)."""
    text = ctypes.create_string_buffer(name.encode()[:15])
    _check(_libc.prctl(_PR_SET_NAME, text, 0, 0, 0), "PR_SET_NAME")


def set_timer_slack(nanoseconds: int) -> None:
    """Let timers of this process and its children fire up to this much late, so that several fire together."""
    _prctl(PR_SET_TIMERSLACK, nanoseconds, "PR_SET_TIMERSLACK")


def unshare_mounts() -> None:
    """Give this process a private mount namespace."""
    unshare(CLONE_NEWNS)
    mount("none", "/", flags=MS_REC | MS_PRIVATE)


def mount(source: str, target: str, *, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    arguments = [None if text is None else text.encode() for text in (source, target, kind)]
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), None if data is None else data.encode()), f"mount {target}")


def clone_mount(folder: str) -> int:
    """Clone the folder as a detached mount, nodev and nosuid; returns its descriptor."""
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
    """Attach a detached mount, possibly from another mount namespace, to the folder of this descriptor."""
    flags = _FROM_EMPTY_PATH | _TO_EMPTY_PATH
    _check(_libc.syscall(_MOVE_MOUNT, tree, b"", place, b"", ctypes.c_uint(flags)), "move_mount")


@functools.cache
def can_move_mounts() -> bool:
    """True when the kernel and this process's rights allow the two functions above."""
    try:
        os.close(clone_mount("/"))
    except OSError:
        return False
    return True


def unshare(kinds: int) -> None:
    """Move into new namespaces of these kinds."""
    _check(_libc.unshare(ctypes.c_int(kinds)), "unshare")


def enter(namespace: int, kind: int) -> None:
    """Join the namespace of the descriptor, which must be of this kind; a pid namespace applies to later children."""
    _check(_libc.setns(ctypes.c_int(namespace), ctypes.c_int(kind)), "setns")


def drop_capabilities() -> None:
    """Drop all capabilities from all five sets."""
    for number in range(64):
        if _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) != 0:
            code = ctypes.get_errno()
            if code != errno.EINVAL:  # EINVAL: no such capability
                raise OSError(code, f"PR_CAPBSET_DROP: {os.strerror(code)}")
            break
    clear_capabilities()


def clear_capabilities() -> None:
    """Clear all sets but the bounding set."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, "PR_CAP_AMBIENT")
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, bytes(24)), "capset")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def own_user_namespace() -> None:
    """Enter a new user namespace with the same uid, as its owner with all capabilities in it."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    allow_proc_access()
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path("/proc/self", name).write_text(text)


def filter_calls(program: bytes) -> None:
    """Install the seccomp filter for this process and its children, irrevocably."""
    code = ctypes.create_string_buffer(program, len(program))
    whole = _Program(len(program) // 8, ctypes.addressof(code))
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(whole), 0, 0), "PR_SET_SECCOMP")


def bring_up_loopback() -> None:
    """Bring up ``lo`` in the current network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        (flags,) = struct.unpack_from("=16xh", fcntl.ioctl(probe, _SIOCGIFFLAGS, struct.pack("=16sh22x", b"lo", 0)))
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("=16sh22x", b"lo", flags | _IFF_UP))
