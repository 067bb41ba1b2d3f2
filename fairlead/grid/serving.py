"""One tenant's thread in the grid process: knows who connects, answers one after the other, sees who is gone."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
from typing import Any

import msgspec

from fairlead import framing
from fairlead.grid import messages as m
from fairlead.grid.catalogue import RESERVED, Session
from fairlead.grid.credentials import born, peer
from fairlead.grid.peers import Peers
from fairlead.grid.store import Refusal, Store

_ANSWER_S = 10.0  # a worker that does not read its answers is let go
_PAGE = 512

log = logging.getLogger("fairlead.grid")


class Connection:
    """One worker's line."""

    def __init__(self, line: socket.socket, job: m.Listen, pid: int) -> None:
        self.line, self.job, self.pid = line, job, pid
        self.session = ""  # empty until it has said hello
        self._unpacker = framing.Unpacker(m.FromClient, m.LONGEST)

    def receive(self) -> list[Any] | None:
        """What it said; None when it is gone or talks nonsense."""
        try:
            data = self.line.recv(1 << 18)
            return self._unpacker.feed(data) if data else None
        except ConnectionResetError:
            return None
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            log.info("a worker of %s is let go: %s", self.job.job, error)
            return None

    def answer(self, message: Any, *descriptors: int) -> None:
        data = framing.pack(message)
        if descriptors:
            sent = socket.send_fds(self.line, [data], list(descriptors))
            data = data[sent:]
        self.line.sendall(data)


class TenantServer(threading.Thread):
    """Only its own tenant waits for what happens here."""

    def __init__(self, store: Store, peers: Peers) -> None:
        super().__init__(name=f"tenant-{store.tenant}", daemon=True)
        self.store, self._peers = store, peers
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[str, socket.socket] = {}
        self._lines: dict[str, Connection] = {}  # by session
        self._wake, self._woken = socket.socketpair()
        self._fresh: list[tuple[m.Listen, socket.socket]] = []
        self._stale: list[str] = []
        self._selector.register(self._woken, selectors.EVENT_READ)

    def listen(self, job: m.Listen, listener: socket.socket) -> None:
        """From another thread: this job may connect."""
        self._fresh.append((job, listener))
        self._wake.send(b"!")

    def forget(self, job: str) -> None:
        """From another thread: it will not any more."""
        self._stale.append(job)
        self._wake.send(b"!")

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    self._woken.recv(64)
                    self._news()
                elif isinstance(key.data, Connection):
                    self._serve(key.data)
                else:
                    self._accept(key.data, self._listeners.get(key.data.job))

    def _news(self) -> None:
        while self._fresh:
            job, listener = self._fresh.pop(0)
            listener.setblocking(False)
            self._listeners[job.job] = listener
            self._selector.register(listener, selectors.EVENT_READ, job)
        while self._stale:
            listener_ = self._listeners.pop(self._stale.pop(0), None)
            if listener_ is not None:
                self._selector.unregister(listener_)
                listener_.close()

    def _accept(self, job: m.Listen, listener: socket.socket | None) -> None:
        if listener is None:
            return
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            line, _ = listener.accept()
            pid, uid = peer(line)
            if uid != (os.geteuid() if job.uid is None else job.uid):
                log.warning("user %d knocked at the grid of %s and was refused", uid, self.store.tenant)
                line.close()
                return
            line.settimeout(_ANSWER_S)
            self._selector.register(line, selectors.EVENT_READ, Connection(line, job, pid))

    def _serve(self, connection: Connection) -> None:
        said = connection.receive()
        if said is None:
            self._lost(connection)
            return
        for request in said:
            try:
                self._request(connection, request)
            except Refusal as refusal:
                if not isinstance(request, m.Release) and not self._try(connection, refusal.problem):
                    return
            except OSError as error:
                log.info("a worker of %s does not hear: %s", connection.job.job, error)
                self._lost(connection)
                return

    def _try(self, connection: Connection, problem: m.Problem) -> bool:
        try:
            connection.answer(problem)
        except OSError:
            self._lost(connection)
            return False
        return True

    def _request(self, connection: Connection, request: Any) -> None:
        if isinstance(request, m.Hello):
            self._greet(connection, request)
        elif not connection.session:
            raise Refusal("say hello first", "forbidden")
        elif isinstance(request, m.Writer):
            connection.answer(m.Placed(warm=self.store.warm), self.store.arena)
        else:
            if isinstance(request, m.Open) and request.id not in self.store.catalogue.entries:
                self._peers.fetch(self.store, connection.session, request.id)  # without the lock: they may ask us, too
            with self.store.lock:
                answer = self._carry_out(connection.session, request)
            if answer is not None:
                connection.answer(answer)

    def _greet(self, connection: Connection, hello: m.Hello) -> None:
        if hello.token != connection.job.token:
            raise Refusal("this token opens nothing here", "forbidden")
        with self.store.lock:
            session = f"{connection.job.job}/{hello.session}"
            self.store.meet(Session(session, connection.pid, born(connection.pid), connection.job.job), hello.held)
        connection.session = session
        self._lines[connection.session] = connection
        store = self.store
        connection.answer(m.Welcome(store.tenant, store.size, store.warm, store.memory_key), store.reading)

    def _carry_out(self, session: str, request: Any) -> m.ToClient | None:
        store = self.store
        match request:
            case m.Reserve():
                return store.reserve(session, request.id, request.nbytes)
            case m.Commit():
                return store.commit(session, request)
            case m.PutSmall():
                return store.put(session, request)
            case m.Open():
                return store.open(session, request.id)
            case m.Release():
                store.release(session, request.id)
                return None
            case m.Drop():
                return store.drop(session, request.id)
            case m.AskUsage():
                return m.Told(store.usage())
            case _:
                return self._blocks(request)

    def _blocks(self, request: m.AskBlocks) -> m.Blocks:
        entries = self.store.catalogue.entries
        found = sorted(one for one, entry in entries.items() if one > request.after and entry.state != RESERVED)
        page = [self.store.catalogue.info(entries[one]) for one in found[:_PAGE]]
        return m.Blocks(page, more=len(found) > _PAGE)

    def _lost(self, connection: Connection) -> None:
        """The line is closed: by its worker, or with it."""
        self._selector.unregister(connection.line)
        connection.line.close()
        if connection.session and self._lines.get(connection.session) is connection:
            del self._lines[connection.session]
            with self.store.lock:
                self.store.part(connection.session)

    def reap(self) -> None:
        """From another thread: let go of the sessions whose process ended while there was no grid process."""
        with self.store.lock:
            for session in list(self.store.catalogue.sessions.values()):
                if session.id not in self._lines and born(session.pid) != session.born:
                    self.store.part(session.id)
