"""Blocks from other nodes: the grid processes of one platform prove to each other that they are, and copy.

The line is made by the keepers, who alone get to each other's sockets; over it both sides prove that they know the
platform's key, for the day on which it leads to another machine.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from fairlead import framing
from fairlead.grid.catalogue import Session
from fairlead.grid.credentials import born, peer
from fairlead.grid.messages import Commit, Fetch, Found, Missing, Peer, PeerDoor
from fairlead.grid.store import Refusal, Store

_NONCE = 32
_ARRIVE_S, _PROVE_S, _ANSWER_S = 10.0, 5.0, 60.0

log = logging.getLogger("fairlead.grid")


class Stranger(OSError):
    """The other side does not know the platform's key."""


def prove(key: bytes, line: socket.socket, *, calls: bool) -> None:
    """Both sides show that they know the key, and neither shows the key; raises Stranger."""
    mine = secrets.token_bytes(_NONCE)
    line.sendall(mine)
    theirs = _exactly(line, _NONCE)
    line.sendall(_proof(key, b"caller" if calls else b"called", mine, theirs))
    if not hmac.compare_digest(_exactly(line, _NONCE), _proof(key, b"called" if calls else b"caller", theirs, mine)):
        raise Stranger("the other grid process does not know the key of this platform")


def _proof(key: bytes, who: bytes, mine: bytes, theirs: bytes) -> bytes:
    return hmac.digest(key, b"fairlead grid " + who + mine + theirs, "sha256")


def _exactly(line: socket.socket, nbytes: int) -> bytes:
    data = bytearray(nbytes)
    _fill(line, memoryview(data))
    return bytes(data)


def _fill(line: socket.socket, room: memoryview) -> None:
    place = 0
    while place < len(room):
        got = line.recv_into(room[place:], min(len(room) - place, 4 << 20))
        if not got:
            raise ConnectionResetError("the other node's grid process is gone")
        place += got


def _message(line: socket.socket, kind: Any) -> Any:
    (length,) = framing.HEADER.unpack(_exactly(line, framing.HEADER.size))
    if length > 1 << 20:
        raise ConnectionResetError("the other node's grid process talks nonsense")
    return msgspec.msgpack.decode(_exactly(line, length), type=kind)


class Peers:
    """The other nodes, as seen from a grid process, and this one as they see it."""

    def __init__(self, ask: Callable[[], None], store: Callable[[str], Store | None]) -> None:
        self._ask, self._store = ask, store
        self._asking = threading.Lock()
        self._complete = threading.Event()
        self._lines: list[socket.socket] = []
        self._key = b""

    # ------------------------------------------------------------ called

    def open_door(self, door: PeerDoor, listener: socket.socket) -> None:
        """Others may come, in a thread of their own each."""
        self._key = door.key
        threading.Thread(target=self._welcome, args=(door, listener), name="peers", daemon=True).start()

    def _welcome(self, door: PeerDoor, listener: socket.socket) -> None:
        while True:
            line, _ = listener.accept()
            pid, uid = peer(line)
            if uid != door.uid:
                log.warning("user %d (process %d) knocked at the door for peers and was refused", uid, pid)
                line.close()
                continue
            threading.Thread(target=self._serve, args=(line,), name="peer", daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        line.settimeout(_ANSWER_S)
        session = f"peer/{secrets.token_hex(8)}"
        try:
            with line:
                prove(self._key, line, calls=False)
                while True:
                    self._lend(line, session, _message(line, Fetch))
        except (OSError, msgspec.MsgspecError) as error:
            if not isinstance(error, ConnectionResetError):
                log.info("a line to another node's grid process ended: %s", error)

    def _lend(self, line: socket.socket, session: str, wanted: Fetch) -> None:
        store = self._store(wanted.tenant)
        if store is None or not store.has(wanted.id):
            line.sendall(framing.pack(Missing()))
            return
        with store.lock:
            store.meet(Session(session, os.getpid(), born(os.getpid())))
            try:
                found = store.open(session, wanted.id)
                entry = store.catalogue.entries[wanted.id]
            except Refusal:
                line.sendall(framing.pack(Missing()))
                return
        try:
            line.sendall(framing.pack(Found(
                found.nbytes, found.header, found.kind, entry.label, entry.cost_s, entry.digest)))  # fmt: skip
            line.sendall(store.view(found.offset, found.nbytes))
        finally:
            with store.lock:
                store.part(session)

    # ------------------------------------------------------------ calling

    def arrived(self, said: Peer, lines: list[socket.socket]) -> None:
        """Lines to other nodes, as asked for; the last word comes with none."""
        for line in lines:
            line.settimeout(_PROVE_S)
            try:
                prove(self._key, line, calls=True)
                line.settimeout(_ANSWER_S)
                self._lines.append(line)
            except OSError as error:
                log.warning("%s: %s", said.node, error)
                line.close()
        if not lines:
            self._complete.set()

    def fetch(self, store: Store, session: str, block: str) -> None:
        """Copy the block into this arena, if any other node has it."""
        with self._asking:
            self._complete.clear()
            self._ask()
            self._complete.wait(_ARRIVE_S)
            lines, self._lines = self._lines, []
            with contextlib.ExitStack() as closing:
                for line in lines:
                    closing.enter_context(line)
                for line in lines:
                    with contextlib.suppress(OSError, msgspec.MsgspecError):  # the next one may have it
                        if _copy(line, store, session, block):
                            return


def _copy(line: socket.socket, store: Store, session: str, block: str) -> bool:
    line.sendall(framing.pack(Fetch(store.tenant, block)))
    found = _message(line, Found | Missing)
    if isinstance(found, Missing):
        return False
    with store.lock:
        placed = store.reserve(session, block, found.nbytes)
    try:
        _fill(line, store.view(placed.offset, placed.nbytes))
    except OSError:
        with store.lock:
            store.release(session, block)
        raise
    with store.lock:
        store.commit(session, Commit(block, found.header, found.kind, found.label, found.cost_s))
        store.hashed(store.catalogue.entries[block], found.digest)
    return True
