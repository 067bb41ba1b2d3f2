"""Packets with descriptors between a grid process and its keeper."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

PACKET_BYTES = 128 * 1024
_MOST_DESCRIPTORS = 8


def receive_packet(packets: socket.socket) -> tuple[bytes, list[int]]:
    """One packet and what it carries; empty when the other side is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(packets, PACKET_BYTES, _MOST_DESCRIPTORS)
    except ConnectionResetError:
        return b"", []
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data, descriptors


def send_packet(packets: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(packets, [data], list(descriptors))
