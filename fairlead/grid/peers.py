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
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from fairlead import framing
from fairlead.grid.arena_store import ArenaStore
from fairlead.grid.catalogue import Session
from fairlead.grid.credentials import peer_credentials, start_ticks
from fairlead.grid.errors import Refusal, is_id
from fairlead.grid.messages import Commit, Fetch, Found, Missing, Peer, PeerListener

_NONCE = 32
_ARRIVE_S, _PROVE_S, _FOUND_S = 10.0, 5.0, 20.0
_BYTES_PER_S = 4 << 20  # a node that copies more slowly is as good as gone
_LEND_S = 60.0  # for whoever asks to take what it asked for
_LATE_S = 60.0  # for so long others are asked before a node that did not answer
_PAUSE_S = 0.2

_asks, _answers = framing.Decoder(Fetch), framing.Decoder(Found | Missing)
log = logging.getLogger("fairlead.grid")


class UnknownPeer(OSError):
    """The other side does not know the platform's key."""


def authenticate(key: bytes, line: socket.socket, *, calls: bool) -> None:
    """Both sides show that they know the key, and neither shows the key; raises Stranger."""
    mine = secrets.token_bytes(_NONCE)
    line.sendall(mine)
    theirs = _receive_exactly(line, _NONCE)
    line.sendall(_proof(key, b"caller" if calls else b"called", mine, theirs))
    if not hmac.compare_digest(
        _receive_exactly(line, _NONCE), _proof(key, b"called" if calls else b"caller", theirs, mine)
    ):
        raise UnknownPeer("the other grid process does not know the key of this platform")


def _proof(key: bytes, who: bytes, mine: bytes, theirs: bytes) -> bytes:
    return hmac.digest(key, b"fairlead grid " + who + mine + theirs, "sha256")


def _receive_exactly(line: socket.socket, nbytes: int) -> bytes:
    data = bytearray(nbytes)
    _receive_into(line, memoryview(data))
    return bytes(data)


def _receive_into(line: socket.socket, room: memoryview, deadline_s: float = inf) -> None:
    place = 0
    while place < len(room):
        if time.monotonic() > deadline_s:
            raise TimeoutError("the other node's grid process is too slow")
        got = line.recv_into(room[place:], min(len(room) - place, 4 << 20))
        if not got:
            raise ConnectionResetError("the other node's grid process is gone")
        place += got


def _receive_message(line: socket.socket, decoder: framing.Decoder) -> Any:
    (length,) = framing.HEADER.unpack(_receive_exactly(line, framing.HEADER.size))
    if length > 1 << 20:
        raise ConnectionResetError("the other node's grid process talks nonsense")
    return decoder.decode(_receive_exactly(line, length))


@dataclass(slots=True)
class _Asked:
    """Lines to the other nodes, for one block."""

    complete: threading.Event = field(default_factory=threading.Event)
    lines: list[tuple[str, socket.socket]] = field(default_factory=list)  # with the node's name


class Peers:
    """The other nodes, as seen from a grid process, and this one as they see it."""

    def __init__(self, ask: Callable[[str], None], store: Callable[[str], ArenaStore | None]) -> None:
        self._ask, self._store = ask, store
        self._asked: dict[str, _Asked] = {}  # by what the keeper says again when it answers
        self._late: dict[str, float] = {}  # nodes that did not answer, and until when others are asked before them
        self._key = b""

    # ------------------------------------------------------------ called

    def accept_peers(self, door: PeerListener, listener: socket.socket) -> None:
        """Others may come, in a thread of their own each."""
        self._key = door.key
        threading.Thread(target=self._accept_loop, args=(door, listener), name="peers", daemon=True).start()

    def _accept_loop(self, door: PeerListener, listener: socket.socket) -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError as error:  # no descriptor is left, or no memory: it may be better soon
                log.error("no other node is let in for a moment: %s", error)
                time.sleep(_PAUSE_S)
                continue
            pid, uid = peer_credentials(line)
            if uid != door.uid:
                log.warning("user %d (process %d) knocked at the door for peers and was refused", uid, pid)
                line.close()
                continue
            threading.Thread(target=self._serve, args=(line,), name="peer", daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        line.settimeout(_LEND_S)
        session = f"peer/{secrets.token_hex(8)}"
        try:
            with line:
                authenticate(self._key, line, calls=False)
                while True:
                    self._send_block(line, session, _receive_message(line, _asks))
        except (OSError, ValueError) as error:
            if not isinstance(error, ConnectionResetError):
                log.info("a line to another node's grid process ended: %s", error)

    def _send_block(self, line: socket.socket, session: str, wanted: Fetch) -> None:
        store = self._store(wanted.tenant)
        if store is None or not is_id(wanted.id) or not store.contains(wanted.id):
            line.sendall(framing.pack(Missing()))
            return
        with store.lock:
            try:
                store.attach_session(Session(session, os.getpid(), start_ticks(os.getpid())))
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
                store.end_session(session)

    # ------------------------------------------------------------ calling

    def add_lines(self, said: Peer, lines: list[socket.socket]) -> None:
        """Lines to other nodes, as asked for; the last word comes with none."""
        asked = self._asked.get(said.tenant)
        if not said.tenant:  # a keeper of an older version does not say who asked
            asked = next(iter(list(self._asked.values())), None)
        if asked is None:
            for line in lines:
                line.close()
        elif lines:
            asked.lines += [(said.node, line) for line in lines]
        else:
            asked.complete.set()

    def fetch(self, store: ArenaStore, session: str, block: str) -> bool:
        """Copy the block into this arena and pin it, if any other node has it; raises Refusal if there is no room."""
        number = f"{store.tenant}/{secrets.token_hex(8)}"
        asked = self._asked[number] = _Asked()
        self._ask(number)
        asked.complete.wait(_ARRIVE_S)
        del self._asked[number]
        with contextlib.ExitStack() as closing:
            for _, line in asked.lines:
                closing.enter_context(line)
            now_s = time.monotonic()
            for node, line in sorted(asked.lines, key=lambda each: self._late.get(each[0], 0.0) > now_s):
                try:
                    if self._authenticate(node, line) and _copy(line, store, session, block):
                        return True
                except TimeoutError as error:
                    self._postpone(node, error)
                except (OSError, ValueError) as error:  # the next one may have it
                    log.info("%s: %s", node, error)
        return False

    def _postpone(self, node: str, error: OSError) -> None:
        log.warning("%s is asked after all others for a while: %s", node, error)
        self._late[node] = time.monotonic() + _LATE_S

    def _authenticate(self, node: str, line: socket.socket) -> bool:
        line.settimeout(_PROVE_S)
        try:
            authenticate(self._key, line, calls=True)
        except UnknownPeer as error:
            log.warning("%s: %s", node, error)
            return False
        line.settimeout(_FOUND_S)
        return True


def _copy(line: socket.socket, store: ArenaStore, session: str, block: str) -> bool:
    line.sendall(framing.pack(Fetch(store.tenant, block)))
    found = _receive_message(line, _answers)
    if isinstance(found, Missing):
        return False
    with store.lock:
        placed = store.reserve(session, block, found.nbytes)
    try:
        within_s = _FOUND_S + found.nbytes / _BYTES_PER_S
        _receive_into(line, store.view(placed.offset, placed.nbytes), time.monotonic() + within_s)
        with store.lock:
            store.commit(session, Commit(block, found.header, found.kind, found.label, found.cost_s))
            store.record_digest(store.catalogue.entries[block], found.digest)
            store.open(session, block)
    except BaseException:
        with store.lock:
            store.release(session, block)
        raise
    return True
