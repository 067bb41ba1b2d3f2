"""Who is at the other end of a unix socket, and whether a process is still the one it was."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("iII")


def peer_credentials(line: socket.socket) -> tuple[int, int]:
    """Process and user of whoever connected, as the kernel says."""
    pid, uid, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid), int(uid)


def start_ticks(pid: int) -> int:
    """When this process started, in ticks since the machine did; 0: there is none, or only its exit code is left."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    state, *numbers = text[text.rindex(")") + 2 :].split()
    dead = state in "ZX" and int(numbers[16]) <= 1  # a first thread may end before the others
    return 0 if dead else int(numbers[18])


def is_same_process(pid: int, since: int) -> bool:
    """Whether the process that started then is still there; what is not known for sure does not count."""
    return since != 0 and start_ticks(pid) == since
