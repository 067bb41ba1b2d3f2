"""Counts network bytes per worker from the kernel's counters per TCP connection.

Uses the sock_diag netlink family (as ``ss`` does), because workers share the machine's network or their gang's, and
no file in /proc counts per process. Returns nothing where the kernel does not offer it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fairlead.agent.sandbox import linux

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_DONE, _ERROR = 3, 2
_INFO = 2  # the attribute that holds struct tcp_info
_ACKED = 120  # offset of tcpi_bytes_acked; tcpi_bytes_received follows
_HEADER = struct.Struct("=IHHII")
_MESSAGE_BYTES = 72  # of struct inet_diag_msg, the inode being its last four


class TrafficCounter:
    """Bytes of one worker so far, including closed connections."""

    def __init__(self) -> None:
        self.total = 0
        self._seen: dict[int, int] = {}

    def update(self, pids: Iterable[int], bytes_by_inode: Mapping[int, int]) -> None:
        """Add the bytes of its connections since the last update."""
        if not bytes_by_inode:
            return
        now = {inode: bytes_by_inode[inode] for inode in _sockets(pids) if inode in bytes_by_inode}
        self.total += sum(max(0, size - self._seen.get(inode, 0)) for inode, size in now.items())
        self._seen = now


def tcp_bytes(pids: Iterable[int]) -> dict[int, int]:
    """Bytes sent and received, by socket inode, of all TCP connections in these processes' networks."""
    found: dict[int, int] = {}
    own = Path("/proc/self/ns/net").stat().st_ino
    seen: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # the process has ended, or there is no sock_diag
            network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                number = os.fstat(network).st_ino
                if number not in seen:
                    seen.add(number)
                    found.update(_connections(None if number == own else network))
            finally:
                os.close(network)
    return found


def _connections(network: int | None) -> dict[int, int]:
    found: dict[int, int] = {}
    with _line() if network is None else _line_into(network) as line:
        line.settimeout(0.5)
        for family in (socket.AF_INET, socket.AF_INET6):
            found.update(_dump(line, family))
    return found


def _line() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)


def _line_into(network: int) -> socket.socket:
    """Open the socket in a thread that enters the network and ends there: without root a thread cannot return."""

    def make() -> socket.socket:
        linux.enter(network, linux.CLONE_NEWNET)
        return _line()

    with ThreadPoolExecutor(1) as away:
        return away.submit(make).result()


def _dump(line: socket.socket, family: int) -> dict[int, int]:
    asked = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, 1 << 1) + bytes(48)  # established
    line.send(_HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _DUMP, 1, 0) + asked)
    found: dict[int, int] = {}
    while True:
        data = line.recv(1 << 18)
        while len(data) >= _HEADER.size:
            length, kind, _, _, _ = _HEADER.unpack_from(data)
            if kind in (_DONE, _ERROR) or length < _HEADER.size:
                return found
            inode, size = _connection(data[_HEADER.size : length])
            found[inode] = size
            data = data[(length + 3) & ~3 :]


def _connection(message: bytes) -> tuple[int, int]:
    (inode,) = struct.unpack_from("=I", message, _MESSAGE_BYTES - 4)
    rest = message[_MESSAGE_BYTES:]
    while len(rest) >= 4:
        length, kind = struct.unpack_from("=HH", rest)
        if kind == _INFO and length >= 4 + _ACKED + 16:
            acked, received = struct.unpack_from("=QQ", rest, 4 + _ACKED)
            return inode, int(acked + received)
        rest = rest[(max(length, 4) + 3) & ~3 :]
    return inode, 0


def _sockets(pids: Iterable[int]) -> set[int]:
    inodes: set[int] = set()
    for pid in pids:
        try:
            links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]  # noqa: PTH115 (many, each second)
        except OSError:  # it has just ended
            continue
        inodes.update(int(link[8:-1]) for link in links if link.startswith("socket:["))
    return inodes
