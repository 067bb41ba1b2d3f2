"""The lines between ranks that ask and ranks that serve: plain sockets, so that the death of a peer is seen at once.

gloo would leave a server that waits for any of its clients asleep when one of them dies (measured). Nothing that
arrives is ever run as code; whoever does not know the token of this generation is sent away.
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

_HEAD = struct.Struct(">QQ")  # bytes of the words, bytes of the tensor
_TOKEN_BYTES = 16
KEEPER, CLOCKS = 0, -1
"""The rank that keeps the clocks of all, and the line to it on which nothing else is said."""
_SIOCGIFADDR = 0x8915
_MOST_WORDS = 1 << 36  # the state of a large model comes as words
NONSENSE = "another rank talks nonsense"
GONE = "the connection to another rank is gone"


class PeerConnection:
    """One connection: words and, if need be, a tensor's bytes, either way."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.settimeout(PATIENCE_S)
        self._stream = stream

    def send(self, words: msgspec.Struct, tensor: torch.Tensor | None, alive: Callable[[], None]) -> None:
        said = msgspec.msgpack.encode(words)
        data: Any = b"" if tensor is None else tensor.numpy().data
        self._write(memoryview(_HEAD.pack(len(said), len(data)) + said), alive)
        if len(data):
            self._write(data, alive)

    def receive(self, kind: Any, into: torch.Tensor | None, alive: Callable[[], None]) -> Any:
        """The next words, of this kind; a tensor's bytes come into the given memory and must be just as many."""
        head = bytearray(_HEAD.size)
        self._read(memoryview(head), alive)
        words, size = _HEAD.unpack(head)
        if words > _MOST_WORDS or size not in (0, 0 if into is None else len(into)):
            raise PeerLost(NONSENSE)
        said = bytearray(words)
        self._read(memoryview(said), alive)
        if size and into is not None:
            self._read(into.numpy().data, alive)
        try:
            return msgspec.msgpack.decode(said, type=kind)
        except msgspec.DecodeError as error:
            raise PeerLost(NONSENSE) from error

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
"""Answers one rank on its line until it is gone, which ends it with PeerLost."""


class PeerConnections:
    """A line to every other rank for asking, and a thread for every other rank that asks."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._token = os.urandom(_TOKEN_BYTES)
        self._closing = threading.Event()
        self.lost: str | None = None  # why this generation is over, once a peer is gone
        self._doors = socket.create_server((_own_address(), 0), backlog=2 * group.size)
        self._serving: list[PeerConnection] = []
        self._asking = self._connect()

    def open(self, serve: Serve) -> None:
        """Answer the others from now on; what they said before waits at the door."""
        threading.Thread(target=self._open_doors, args=(serve,), name="fairlead-doors", daemon=True).start()

    def say(self, rank: int, words: msgspec.Struct, tensor: torch.Tensor | None = None) -> None:
        """Ask another rank for something; :meth:`hear` takes its answer."""
        self._asking[rank].send(words, tensor, self._patience())

    def hear(self, rank: int, kind: Any, into: torch.Tensor | None = None, within_s: float | None = None) -> Any:
        """The answer of another rank; ``within_s``: even if a peer is known to be lost."""
        alive = self._patience() if within_s is None else _until(time.monotonic() + within_s)
        return self._asking[rank].receive(kind, into, alive)

    def check(self) -> None:
        """Raise if a peer is gone, or if nobody waits for this generation any more."""
        if self.lost is not None:
            raise PeerLost(self.lost)
        self._group.check_called_off()

    def close(self) -> None:
        self._closing.set()
        self._doors.close()
        for line in [*self._asking.values(), *self._serving]:
            line.close()

    def _patience(self) -> Callable[[], None]:
        """To be called while nothing comes: raises when that has lasted too long."""
        deadline_s = time.monotonic() + self._group.silence_s

        in_time = _until(deadline_s)

        def alive() -> None:
            self.check()
            in_time()

        return alive

    # ------------------------------------------------------------ meeting

    def _connect(self) -> dict[int, PeerConnection]:
        host, port = self._doors.getsockname()[:2]
        card = self._token + f"{host}:{port}".encode()
        cards = self._group.gather(torch.tensor(list(card.ljust(64)), dtype=torch.uint8, device=self._group.device))
        lines = {}
        for rank, row in enumerate(cards.tolist()):
            if rank == self._group.rank:
                continue
            token, place = bytes(row[:_TOKEN_BYTES]), bytes(row[_TOKEN_BYTES:]).decode().strip()
            lines[rank] = self._dial(rank, token, place)
            if rank == KEEPER:
                lines[CLOCKS] = self._dial(rank, token, place)
        return lines

    def _dial(self, rank: int, token: bytes, place: str) -> PeerConnection:
        host, _, port = place.rpartition(":")
        try:
            stream = socket.create_connection((host, int(port)), timeout=self._group.silence_s)
            stream.sendall(token + bytes([self._group.rank % 256, self._group.rank // 256]))
        except OSError as error:
            raise PeerLost(f"rank {rank} cannot be reached: {error.strerror}") from error
        return PeerConnection(stream)

    def _open_doors(self, serve: Serve) -> None:
        while not self._closing.is_set():
            try:
                stream, _ = self._doors.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._admit, args=(stream, serve), name="fairlead-server", daemon=True).start()

    def _admit(self, stream: socket.socket, serve: Serve) -> None:
        stream.settimeout(self._group.silence_s)
        said = b""
        while len(said) < _TOKEN_BYTES + 2:
            try:
                more = stream.recv(_TOKEN_BYTES + 2 - len(said))
            except OSError:
                more = b""
            if not more:
                stream.close()
                return
            said += more
        if not hmac.compare_digest(said[:_TOKEN_BYTES], self._token):
            stream.close()
            return
        line = PeerConnection(stream)
        self._serving.append(line)
        try:
            serve(said[-2] + 256 * said[-1], line)
        except PeerLost as lost:
            self.lost = self.lost or str(lost)
        finally:
            self.lost = self.lost or GONE  # whatever ended it: nobody answers that rank any more


def _until(deadline_s: float) -> Callable[[], None]:
    def in_time() -> None:
        if time.monotonic() > deadline_s:
            raise PeerLost("another rank did not answer in time")

    return in_time


def _own_address() -> str:
    """Where the others reach this rank: on the interface that the rest of the gang's traffic takes."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
            return socket.inet_ntoa(packed[20:24])
        except OSError:
            return socket.gethostbyname(socket.gethostname())
