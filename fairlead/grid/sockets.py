"""Unix sockets at paths of any length, restricted to one user, and packets that carry descriptors."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

PACKET_BYTES = 128 * 1024
_MOST_DESCRIPTORS = 8


def receive_packet(packets: socket.socket) -> tuple[bytes, list[int]]:
    """One packet and its descriptors; empty when the connection is closed."""
    try:
        data, descriptors, _, _ = socket.recv_fds(packets, PACKET_BYTES, _MOST_DESCRIPTORS)
    except ConnectionResetError:
        return b"", []
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data, descriptors


def send_packet(packets: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(packets, [data], list(descriptors))


def bind(path: Path, uid: int | None) -> socket.socket:
    """A listening socket that only this user can connect to; replaces a stale one."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    before = os.umask(0o177)
    try:
        name = f"/proc/self/fd/{folder}/{path.name}"  # a socket address has 108 bytes, a path may have more
        listener.bind(name)
        if uid is not None and os.geteuid() == 0:
            os.chown(path, uid, uid, follow_symlinks=False)
    finally:
        os.umask(before)
        os.close(folder)
    listener.listen(128)
    return listener


def connect(path: Path, timeout_s: float | None = None) -> socket.socket:
    """Connect to the socket at the path; raises OSError."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(timeout_s)
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            line.connect(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
    except OSError:
        line.close()
        raise
    return line
