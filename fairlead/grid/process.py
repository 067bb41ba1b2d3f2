"""The grid process of one node: serves each tenant in a thread of its own and runs no tenant code.

All that must outlive it (arenas, journals, listening sockets) comes from its supervisor, which keeps a descriptor too.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import logging
import os
import resource
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from fairlead import framing
from fairlead.grid.arena_store import ArenaStore
from fairlead.grid.messages import (
    Admit,
    AskPeers,
    Discard,
    Forget,
    FromSupervisor,
    Listen,
    Peer,
    PeerListener,
    Ping,
    Pong,
    Report,
    ToSupervisor,
)
from fairlead.grid.peers import Peers
from fairlead.grid.tenant_server import TenantServer
from fairlead.grid.values import Usage
from fairlead.unix_sockets import PACKET_BYTES, receive_packet

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME = 1, 4, 15
_REPORT_S = 1.0
_BUSY_S = 0.05  # the background thread waits this long for a tenant's lock
_HASH_PIECE = 1 << 20
_DESCRIPTORS = 1 << 18

_orders = framing.Decoder(FromSupervisor)
log = logging.getLogger("fairlead.grid")


class GridProcess:
    """Handles the supervisor's messages in the main thread; hashes and reports in a background thread."""

    def __init__(self, control: socket.socket, spill: Path) -> None:
        self._control, self._spill = control, spill
        self._servers: dict[str, TenantServer] = {}
        self._peers = Peers(lambda tenant: self._send(AskPeers(tenant)), self._store)
        self._sending = threading.Lock()
        self._reported: dict[str, Usage] = {}

    def run(self) -> None:
        """Serve until the supervisor is gone."""
        threading.Thread(target=self._background, name="background", daemon=True).start()
        while True:
            data, descriptors = receive_packet(self._control)
            if not data:
                return
            try:
                self._handle_message(_orders.decode(data), descriptors)
            except Exception:  # usually one tenant's problem: keep serving the others
                log.exception("fault %s: a message of the supervisor", secrets.token_hex(4))

    def _handle_message(self, said: FromSupervisor, descriptors: list[int]) -> None:
        match said:
            case Admit():
                self._admit(said, descriptors)
            case Listen():
                listener = socket.socket(fileno=descriptors[0])
                self._servers[said.tenant].listen(said, listener)
            case Forget():
                for server in self._servers.values():
                    server.forget(said.job)
            case Discard():
                for tenant, server in self._servers.items():
                    if said.tenant in ("", tenant):
                        server.discard(said.label)
            case Ping():
                self._send(Pong(said.number))
            case Peer():
                self._peers.add_lines(said, [socket.socket(fileno=descriptor) for descriptor in descriptors])
            case PeerListener():
                self._peers.accept_peers(said, socket.socket(fileno=descriptors[0]))

    def _admit(self, said: Admit, descriptors: list[int]) -> None:
        known = self._servers.get(said.tenant)
        if known is not None:
            known.set_quota(said)
            for descriptor in descriptors:
                os.close(descriptor)
            return
        arena, reading, journal = descriptors
        store = ArenaStore(said, arena, reading, journal, self._spill)
        self._servers[said.tenant] = server = TenantServer(store, self._peers)
        server.start()

    def _store(self, tenant: str) -> ArenaStore | None:
        server = self._servers.get(tenant)
        return None if server is None else server.store

    def _send(self, message: ToSupervisor) -> None:
        with self._sending, contextlib.suppress(BrokenPipeError, ConnectionResetError):  # run() notices the end
            self._control.send(msgspec.msgpack.encode(message))

    # ------------------------------------------------------------ background

    def _background(self) -> None:
        """Hash and report for ever; ends the process on an internal error, so that the supervisor restarts it."""
        try:
            self._work_in_background()
        except Exception:
            log.exception("fault %s: the background thread failed; ending the process", secrets.token_hex(4))
            os._exit(1)

    def _work_in_background(self) -> None:
        own = threading.get_native_id()
        with contextlib.suppress(OSError):  # without it, hashing competes with workers
            os.setpriority(os.PRIO_PROCESS, own, max(10, os.getpriority(os.PRIO_PROCESS, own)))
        reported_s = 0.0
        while True:
            servers = list(self._servers.values())
            hashed = [self._guarded(self._hash_one, server) for server in servers]
            if time.monotonic() - reported_s > _REPORT_S:
                reported_s = time.monotonic()
                for server in servers:
                    self._guarded(self._report, server)
            if not any(hashed):
                time.sleep(0.05)

    def _guarded(self, work: Callable[[TenantServer], bool], server: TenantServer) -> bool:
        """Run background work; log a failure instead of letting it stop the other tenants' work."""
        try:
            return work(server)
        except Exception:
            log.exception("fault %s: background work of tenant %s", secrets.token_hex(4), server.store.tenant)
            return False

    def _hash_one(self, server: TenantServer) -> bool:
        store = server.store
        if not store.lock.acquire(timeout=_BUSY_S):
            return False
        try:
            found = store.next_unhashed()
        finally:
            store.lock.release()
        if found is None:
            return False
        entry, data = found
        digest = hashlib.blake2b(digest_size=32)
        for begin in range(0, len(data), _HASH_PIECE):
            if not store.is_unchanged(entry):
                return True
            digest.update(data[begin : begin + _HASH_PIECE])
        with store.lock:
            store.record_digest(entry, digest.hexdigest())
        return True

    def _report(self, server: TenantServer) -> bool:
        """Report the tenant's usage if it changed; one tenant per packet, whose size is limited."""
        tenant, lock = server.store.tenant, server.store.lock
        if not lock.acquire(timeout=_BUSY_S):
            return False  # it may be spilling gigabytes: do not hold up other tenants
        try:
            server.store.end_dead_sessions()
            server.store.trim(time.monotonic())
            usage = server.store.usage()
        finally:
            lock.release()
        if self._reported.get(tenant) != usage:
            self._send(fit_to_packet(tenant, usage))
            self._reported[tenant] = usage
        return True


def fit_to_packet(tenant: str, usage: Usage) -> Report:
    """The usage as a report that fits into one packet; keeps the labels and jobs with the most bytes."""
    most = max(len(usage.by_label), len(usage.by_job))
    while len(msgspec.msgpack.encode(report := Report({tenant: usage}))) > PACKET_BYTES and most:
        most //= 2
        usage = msgspec.structs.replace(
            usage, by_label=_largest(usage.by_label, most), by_job=_largest(usage.by_job, most)
        )
    return report


def _largest(nbytes: dict[str, int], most: int) -> dict[str, int]:
    return dict(sorted(nbytes.items(), key=lambda item: (-item[1], item[0]))[:most])


def _allow_descriptors() -> None:
    """Raise the limit of open files: each worker process of every tenant has a connection here."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # only root raises the hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, _DESCRIPTORS), max(most, _DESCRIPTORS)))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fairlead.grid.process")
    parser.add_argument("--control", type=int, required=True, help="descriptor of the connection to the supervisor")
    parser.add_argument("--spill", type=Path, required=True, help="folder for spilled blocks")
    parser.add_argument("--name", default="fl-grid")
    parser.add_argument("--uid", type=int, help="the user to become")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    spill = os.open(given.spill, os.O_PATH | os.O_DIRECTORY)  # the user below may not be able to reach it
    _allow_descriptors()
    if given.uid is not None:  # not earlier: imports may need root's access
        os.setgroups([])
        os.setresgid(given.uid, given.uid, given.uid)
        os.setresuid(given.uid, given.uid, given.uid)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_DUMPABLE, 0)  # closed to other processes of the same user
    libc.prctl(_PR_SET_NAME, given.name.encode()[:15])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    GridProcess(socket.socket(fileno=given.control), Path(f"/proc/self/fd/{spill}")).run()


if __name__ == "__main__":
    main()
