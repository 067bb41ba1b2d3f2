"""Who is at the other end of a unix socket, and whether a process is still the one it was."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("iII")


def peer(line: socket.socket) -> tuple[int, int]:
    """Process and user of whoever connected, as the kernel says."""
    pid, uid, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid), int(uid)


def born(pid: int) -> int:
    """When this process started, in ticks since the machine did; 0: there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(text[text.rindex(")") + 2 :].split()[19])
