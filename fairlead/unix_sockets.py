"""Unix sockets at paths of any length, restricted to one user, and packets that carry file descriptors."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

PACKET_BYTES = 128 * 1024
_MOST_DESCRIPTORS = 8


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name for the path that fits into the 108 bytes of a socket address."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listen(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM, uid: int | None = None) -> socket.socket:
    """A listening socket that only this user, or the user ``uid``, can connect to; replaces a stale one."""
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, kind)
    before = os.umask(0o177)
    try:
        with _short(path) as name:
            server.bind(name)
        if uid is not None and os.geteuid() == 0:
            os.chown(path, uid, uid, follow_symlinks=False)
    finally:
        os.umask(before)
    server.listen(128)
    return server


def connect(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM, timeout_s: float | None = None) -> socket.socket:
    """A socket connected to the path, with this timeout; raises ``OSError``.

    With 0.0 the socket does not block, and a full backlog fails at once.
    """
    client = socket.socket(socket.AF_UNIX, kind)
    client.settimeout(timeout_s)
    try:
        with _short(path) as name:
            client.connect(name)
    except OSError:
        client.close()
        raise
    return client


def send_packet(packets: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(packets, [data], list(descriptors))


def receive_packet(packets: socket.socket) -> tuple[bytes, list[int]]:
    """One packet and its descriptors; empty when the connection is closed."""
    try:
        data, descriptors, _, _ = socket.recv_fds(packets, PACKET_BYTES, _MOST_DESCRIPTORS)
    except ConnectionResetError:
        return b"", []
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data, descriptors
