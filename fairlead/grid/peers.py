"""Copies blocks between the grid processes of one platform, which authenticate each other by the platform's key.

The supervisors make the connections: only they can reach each other's sockets. Both grid processes then prove that
they know the key, so that the same protocol is safe between machines.
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
_BYTES_PER_S = 4 << 20  # a slower transfer counts as failed
_LEND_S = 60.0  # for a peer to receive a block
_LATE_S = 60.0  # a node that timed out is asked last for this long
_PAUSE_S = 0.2

_asks, _answers = framing.Decoder(Fetch), framing.Decoder(Found | Missing)
log = logging.getLogger("fairlead.grid")


class UnknownPeer(OSError):
    """The peer does not know the platform's key."""


def authenticate(key: bytes, line: socket.socket, *, calls: bool) -> None:
    """Mutual challenge-response over the shared key; raises UnknownPeer."""
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
            raise TimeoutError("the transfer is too slow")
        got = line.recv_into(room[place:], min(len(room) - place, 4 << 20))
        if not got:
            raise ConnectionResetError("the peer closed the connection")
        place += got


def _receive_message(line: socket.socket, decoder: framing.Decoder) -> Any:
    (length,) = framing.HEADER.unpack(_receive_exactly(line, framing.HEADER.size))
    if length > 1 << 20:
        raise ConnectionResetError(f"the peer announces a message of {length} bytes")
    return decoder.decode(_receive_exactly(line, length))


@dataclass(slots=True)
class _Asked:
    """The connections to other nodes for one fetch."""

    complete: threading.Event = field(default_factory=threading.Event)
    lines: list[tuple[str, socket.socket]] = field(default_factory=list)  # with the node's name


class Peers:
    """Fetches blocks from other nodes, and serves this node's blocks to them."""

    def __init__(self, ask: Callable[[str], None], store: Callable[[str], ArenaStore | None]) -> None:
        self._ask, self._store = ask, store
        self._asked: dict[str, _Asked] = {}  # by the number that the supervisor repeats in its answer
        self._late: dict[str, float] = {}  # nodes that timed out -> until when they are asked last
        self._key = b""

    # ------------------------------------------------------------ serving

    def accept_peers(self, door: PeerListener, listener: socket.socket) -> None:
        """Accept connections of other nodes, each in a thread of its own."""
        self._key = door.key
        threading.Thread(target=self._accept_loop, args=(door, listener), name="peers", daemon=True).start()

    def _accept_loop(self, door: PeerListener, listener: socket.socket) -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError as error:  # out of descriptors or memory: retry soon
                log.error("connections of other nodes cannot be accepted at the moment: %s", error)
                time.sleep(_PAUSE_S)
                continue
            pid, uid = peer_credentials(line)
            if uid != door.uid:
                log.warning("refused a peer connection of user %d (process %d)", uid, pid)
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
                log.info("a peer connection ended: %s", error)

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

    # ------------------------------------------------------------ fetching

    def add_lines(self, said: Peer, lines: list[socket.socket]) -> None:
        """Take the connections that were asked for; a message without any is the last."""
        asked = self._asked.get(said.tenant)
        if not said.tenant:  # a supervisor of an older version does not name the request
            asked = next(iter(list(self._asked.values())), None)
        if asked is None:
            for line in lines:
                line.close()
        elif lines:
            asked.lines += [(said.node, line) for line in lines]
        else:
            asked.complete.set()

    def fetch(self, store: ArenaStore, session: str, block: str) -> bool:
        """Copy the block into this arena and pin it; False when no node has it. Raises Refusal if there is no room."""
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
                except (OSError, ValueError) as error:  # the next node may have it
                    log.info("%s: %s", node, error)
        return False

    def _postpone(self, node: str, error: OSError) -> None:
        log.warning("%s timed out and is asked last for %.0f s: %s", node, _LATE_S, error)
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
