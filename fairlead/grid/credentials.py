"""Identifies the process at the other end of a unix socket, and tells a process from a later one with its pid."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("iII")


def peer_credentials(line: socket.socket) -> tuple[int, int]:
    """Pid and uid of the process that connected, from SO_PEERCRED."""
    pid, uid, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid), int(uid)


def start_ticks(pid: int) -> int:
    """Start time of the process in clock ticks since boot; 0 when there is none or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    state, *numbers = text[text.rindex(")") + 2 :].split()
    dead = state in "ZX" and int(numbers[16]) <= 1  # the main thread may end before the others
    return 0 if dead else int(numbers[18])


def is_same_process(pid: int, since: int) -> bool:
    """True when the process that started then still lives; an unknown start (0) counts as dead."""
    return since != 0 and start_ticks(pid) == since
