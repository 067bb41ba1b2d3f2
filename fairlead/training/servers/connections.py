"""Connections between ranks that ask and ranks that serve: plain sockets, which show the death of a peer at once.

With gloo a server that waits for any of its clients would sleep on when one dies (measured). Nothing that arrives is
ever run as code; a connection without the token of this generation is closed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from fairlead.training.group import PATIENCE_S, Group, PeerLost

_HEAD = struct.Struct(">QQ")  # bytes of the message, bytes of the tensor
_TOKEN_BYTES = 16
CLOCK_RANK, CLOCKS = 0, -1
"""The rank that serves the clocks, and the key of the extra connection to it, which carries nothing else."""
_SIOCGIFADDR = 0x8915
_MOST_MESSAGE_BYTES = 1 << 36  # bytes; the state of a large model comes as one message
PROTOCOL_ERROR = "another rank broke the protocol"
GONE = "the connection to another rank is gone"


class PeerConnection:
    """A connection that carries messages, each with an optional tensor, either way."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.settimeout(PATIENCE_S)
        self._stream = stream

    def send(self, message: msgspec.Struct, tensor: torch.Tensor | None, alive: Callable[[], None]) -> None:
        packed = msgspec.msgpack.encode(message)
        data: Any = b"" if tensor is None else tensor.numpy().data
        self._write(memoryview(_HEAD.pack(len(packed), len(data)) + packed), alive)
        if len(data):
            self._write(data, alive)

    def receive(self, kind: Any, into: torch.Tensor | None, alive: Callable[[], None]) -> Any:
        """The next message, of this kind; a tensor's bytes go into ``into`` and must fill it."""
        head = bytearray(_HEAD.size)
        self._read(memoryview(head), alive)
        length, size = _HEAD.unpack(head)
        if length > _MOST_MESSAGE_BYTES or size not in (0, 0 if into is None else len(into)):
            raise PeerLost(PROTOCOL_ERROR)
        packed = bytearray(length)
        self._read(memoryview(packed), alive)
        if size and into is not None:
            self._read(into.numpy().data, alive)
        try:
            return msgspec.msgpack.decode(packed, type=kind)
        except msgspec.DecodeError as error:
            raise PeerLost(PROTOCOL_ERROR) from error

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the other side may be gone already
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()

    def _write(self, data: memoryview, alive: Callable[[], None]) -> None:
        while data:
            try:
                data = data[self._stream.send(data) :]
            except TimeoutError:
                alive()
            except OSError as error:
                raise PeerLost(GONE) from error

    def _read(self, data: memoryview, alive: Callable[[], None]) -> None:
        while data:
            try:
                size = self._stream.recv_into(data)
            except TimeoutError:
                alive()
                continue
            except OSError as error:
                raise PeerLost(GONE) from error
            if not size:
                raise PeerLost(GONE)
            data = data[size:]


Serve = Callable[[int, PeerConnection], None]
"""Answers one rank's requests until it is gone, which raises PeerLost."""


class PeerConnections:
    """A connection to every other rank for requests, and a thread for every other rank that sends some."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._token = os.urandom(_TOKEN_BYTES)
        self._closing = threading.Event()
        self.lost: str | None = None  # why this generation is over; None: no peer is lost
        self._listener = socket.create_server((_own_address(), 0), backlog=2 * group.size)
        self._serving: list[PeerConnection] = []
        self._asking = self._connect()

    def open(self, serve: Serve) -> None:
        """Answer the other ranks from now on; requests that came earlier wait in the backlog."""
        threading.Thread(target=self._accept_peers, args=(serve,), name="fairlead-doors", daemon=True).start()

    def send_request(self, rank: int, message: msgspec.Struct, tensor: torch.Tensor | None = None) -> None:
        """Send a request to another rank; :meth:`receive_answer` reads its answer."""
        self._asking[rank].send(message, tensor, self._silence_check())

    def receive_answer(
        self, rank: int, kind: Any, into: torch.Tensor | None = None, within_s: float | None = None
    ) -> Any:
        """The answer of another rank. ``within_s``: a deadline that holds even if a peer is known to be lost."""
        alive = self._silence_check() if within_s is None else _deadline(time.monotonic() + within_s)
        return self._asking[rank].receive(kind, into, alive)

    def check(self) -> None:
        """Raise PeerLost if a peer is gone, or if the control plane has ended this generation."""
        if self.lost is not None:
            raise PeerLost(self.lost)
        self._group.check_abandoned()

    def close(self) -> None:
        self._closing.set()
        self._listener.close()
        for line in [*self._asking.values(), *self._serving]:
            line.close()

    def _silence_check(self) -> Callable[[], None]:
        """A function to call while nothing arrives: raises PeerLost when that lasts too long."""
        deadline_s = time.monotonic() + self._group.silence_s

        in_time = _deadline(deadline_s)

        def alive() -> None:
            self.check()
            in_time()

        return alive

    # ------------------------------------------------------------ connecting

    def _connect(self) -> dict[int, PeerConnection]:
        host, port = self._listener.getsockname()[:2]
        contact = self._token + f"{host}:{port}".encode()
        contacts = self._group.gather(
            torch.tensor(list(contact.ljust(64)), dtype=torch.uint8, device=self._group.device)
        )
        lines = {}
        for rank, row in enumerate(contacts.tolist()):
            if rank == self._group.rank:
                continue
            token, place = bytes(row[:_TOKEN_BYTES]), bytes(row[_TOKEN_BYTES:]).decode().strip()
            lines[rank] = self._connect_to(rank, token, place)
            if rank == CLOCK_RANK:
                lines[CLOCKS] = self._connect_to(rank, token, place)
        return lines

    def _connect_to(self, rank: int, token: bytes, place: str) -> PeerConnection:
        host, _, port = place.rpartition(":")
        try:
            stream = socket.create_connection((host, int(port)), timeout=self._group.silence_s)
            stream.sendall(token + bytes([self._group.rank % 256, self._group.rank // 256]))
        except OSError as error:
            raise PeerLost(f"rank {rank} cannot be reached: {error.strerror}") from error
        return PeerConnection(stream)

    def _accept_peers(self, serve: Serve) -> None:
        while not self._closing.is_set():
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve_peer, args=(stream, serve), name="fairlead-server", daemon=True).start()

    def _serve_peer(self, stream: socket.socket, serve: Serve) -> None:
        stream.settimeout(self._group.silence_s)
        greeting = b""
        while len(greeting) < _TOKEN_BYTES + 2:
            try:
                more = stream.recv(_TOKEN_BYTES + 2 - len(greeting))
            except OSError:
                more = b""
            if not more:
                stream.close()
                return
            greeting += more
        if not hmac.compare_digest(greeting[:_TOKEN_BYTES], self._token):
            stream.close()
            return
        line = PeerConnection(stream)
        self._serving.append(line)
        try:
            serve(greeting[-2] + 256 * greeting[-1], line)
        except PeerLost as lost:
            self.lost = self.lost or str(lost)
        finally:
            self.lost = self.lost or GONE  # whatever ended it: that rank gets no more answers


def _deadline(deadline_s: float) -> Callable[[], None]:
    def in_time() -> None:
        if time.monotonic() > deadline_s:
            raise PeerLost("another rank did not answer in time")

    return in_time


def _own_address() -> str:
    """This rank's address on the interface that the rest of the gang's traffic takes."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
            return socket.inet_ntoa(packed[20:24])
        except OSError:
            return socket.gethostbyname(socket.gethostname())
