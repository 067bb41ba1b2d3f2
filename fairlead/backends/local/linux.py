"""The few Linux calls that Python's own modules do not offer."""

from __future__ import annotations

import ctypes
import os
import signal

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18

_CLONE_NEWNS = 0x00020000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 15, 36, 38

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


def own_proc_entries() -> None:
    """Give /proc/self back to a process that changed its user (the kernel hands it to root)."""
    _prctl(_PR_SET_DUMPABLE, 1, "PR_SET_DUMPABLE")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none gets away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def call_process(name: str) -> None:
    """Give the process a name of its own in ``ps`` and ``top`` (15 bytes are shown): forks look all alike otherwise."""
    text = ctypes.create_string_buffer(name.encode()[:15])
    _check(_libc.prctl(_PR_SET_NAME, text, 0, 0, 0), "PR_SET_NAME")


def private_mounts() -> None:
    """Give this process mounts of its own: what it mounts, nobody outside sees."""
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    mount("none", "/", flags=MS_REC | MS_PRIVATE)


def mount(source: str, target: str, *, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    arguments = [None if text is None else text.encode() for text in (source, target, kind)]
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), None if data is None else data.encode()), f"mount {target}")
