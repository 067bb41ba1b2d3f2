"""Serves one tenant's workers in a thread of the grid process: authenticates them and answers their requests."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from fairlead import framing
from fairlead.grid import messages as m
from fairlead.grid.arena_store import ArenaStore
from fairlead.grid.catalogue import RESERVED, Session
from fairlead.grid.credentials import peer_credentials, start_ticks
from fairlead.grid.errors import Refusal, check_session, is_id
from fairlead.grid.peer_fetches import PREFIX, Fetches
from fairlead.grid.peers import Peers

_ANSWER_S = 10.0  # a worker that does not read an answer for this long is disconnected
_HELLO_S = 10.0  # so is a connection without a Hello
_PAGE = 512
MOST_LINES = 1024
"""Connections of one tenant on a node, one per worker process. All tenants share the grid process's descriptors, so
further connections wait in the listen backlog until one is closed."""
_MOST_UNREAD = 64 << 20  # bytes of incomplete messages, per tenant
_WARN_S = 60.0  # between two warnings about paused accepting
_PAUSE_S = 0.2  # until the next accept when the process is out of descriptors
_MOST_HELD = 1 << 16  # blocks that a Hello may list as held
_AGAIN_S, _LONGEST_AGAIN_S = 0.1, 5.0  # back-off after a fault of a tenant's thread

log = logging.getLogger("fairlead.grid")


class Connection:
    """One worker's connection."""

    def __init__(self, line: socket.socket, job: m.Listen, pid: int) -> None:
        self.line, self.job, self.pid = line, job, pid
        self.session = ""  # empty before its Hello
        self.since_s = time.monotonic()
        self.closed = False
        self.unread = 0  # bytes of an incomplete message at the last read
        self.requests: deque[Any] = deque()  # received and not answered yet
        self.fetching = False  # a block from another node; not read meanwhile
        self._unpacker = framing.Unpacker(m.FromClient, m.LONGEST)

    def receive(self) -> list[Any] | None:
        """The messages received; None when the connection is closed or a message is invalid."""
        try:
            data = self.line.recv(1 << 18)
            return self._unpacker.feed(data) if data else None
        except ConnectionResetError:
            return None
        except (OSError, ValueError) as error:
            log.info("disconnecting a worker of %s: %s", self.job.job, error)
            return None

    def unread_growth(self) -> int:
        """Update the size of the incomplete message; returns the change in bytes."""
        before, self.unread = self.unread, len(self._unpacker)
        return self.unread - before

    def answer(self, message: Any, *descriptors: int) -> None:
        data = framing.pack(message)
        if descriptors:
            sent = socket.send_fds(self.line, [data], list(descriptors))
            data = data[sent:]
        self.line.sendall(data)


class TenantServer(threading.Thread):
    """One tenant's thread: slow requests hold up that tenant only."""

    def __init__(self, store: ArenaStore, peers: Peers) -> None:
        super().__init__(name=f"tenant-{store.tenant}", daemon=True)
        self.store = store
        self._listeners: dict[str, tuple[m.Listen, socket.socket]] = {}
        self._connections: set[Connection] = set()
        self._warned_s = float("-inf")
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # a full pipe would block the writer
        self._orders: deque[Callable[[], None]] = deque()
        self._fetches = Fetches(store, peers, self._order)
        self._reset()

    def _reset(self) -> None:
        """Drop all connections and start over with the same listeners."""
        for connection in self._connections:
            connection.closed = True
            connection.line.close()
        for session in list(self.store.connected):
            if not session.startswith(PREFIX):
                with self.store.lock:
                    self.store.disconnect_session(session)
        self._connections.clear()
        self._lines: dict[str, Connection] = {}  # by session
        self._unauthenticated: dict[int, Connection] = {}  # by descriptor, oldest first: without a Hello yet
        self._unread = 0  # bytes of incomplete messages
        self._paused_until_s: float | None = None  # no connection is accepted before
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        for job, listener in self._listeners.values():
            self._selector.register(listener, selectors.EVENT_READ, job)

    # ------------------------------------------------------------ from other threads

    def listen(self, job: m.Listen, listener: socket.socket) -> None:
        """Accept workers of this job."""
        self._order(partial(self._add_listener, job, listener))

    def forget(self, job: str) -> None:
        """Stop accepting workers of this job."""
        self._order(partial(self._remove_listener, job))

    def set_quota(self, admit: m.Admit) -> None:
        """Change the tenant's quotas."""
        self._order(partial(self._locked, partial(self.store.set_quota, admit.quota, admit.spill_bytes)))

    def discard(self, label: str) -> None:
        """Remove the unused blocks of this label."""
        self._order(partial(self._locked, partial(self.store.discard, label)))

    def _order(self, work: Callable[[], None]) -> None:
        """Run this in the tenant's thread, in order; never blocks."""
        self._orders.append(work)
        with contextlib.suppress(BlockingIOError):  # the counter is full: it wakes up anyway
            os.eventfd_write(self._wake, 1)

    # ------------------------------------------------------------ the tenant's thread

    def run(self) -> None:
        """Serve for ever. After an internal error it restarts; workers reconnect and keep pins and reservations."""
        pause_s = _AGAIN_S
        while True:
            begun_s = time.monotonic()
            try:
                self._serve_all()
            except Exception:
                log.exception("fault %s: restarting the thread of tenant %s", secrets.token_hex(4), self.store.tenant)
            quick = time.monotonic() - begun_s < _WARN_S
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_AGAIN_S) if quick else _AGAIN_S
            self._selector.close()
            self._reset()

    def _serve_all(self) -> None:
        while True:
            self._serve_round()

    def _serve_round(self) -> None:
        self._run_orders()
        for key, _ in self._selector.select(self._select_timeout_s()):
            if key.fileobj == self._wake:
                os.eventfd_read(self._wake)
            elif isinstance(key.data, Connection):
                if not key.data.closed:  # by an earlier event of this round
                    self._serve(key.data)
            elif self._paused_until_s is None:
                self._accept(key.data)
        self._drop_unauthenticated()
        if self._paused_until_s is not None and len(self._connections) < MOST_LINES:
            self._resume_accepting()

    def _run_orders(self) -> None:
        while self._orders:
            self._orders.popleft()()

    def _locked(self, work: Callable[[], None]) -> None:
        with self.store.lock:
            work()

    def _select_timeout_s(self) -> float | None:
        """Seconds until the next timer; None when no timer runs."""
        oldest = next(iter(self._unauthenticated.values()), None)
        waits = [] if oldest is None else [oldest.since_s + _HELLO_S]
        if self._paused_until_s is not None and len(self._connections) < MOST_LINES:
            waits.append(self._paused_until_s)
        return max(0.0, min(waits) - time.monotonic()) if waits else None

    def _drop_unauthenticated(self) -> None:
        late_s = time.monotonic() - _HELLO_S
        while self._unauthenticated and (oldest := next(iter(self._unauthenticated.values()))).since_s <= late_s:
            self._drop_connection(oldest)

    def _pause_accepting(self, why: str, wait_s: float = 0.0) -> None:
        """Stop accepting for now; new connections wait in the backlog."""
        self._paused_until_s = time.monotonic() + wait_s
        if self._paused_until_s > self._warned_s + _WARN_S:
            self._warned_s = self._paused_until_s
            log.warning("further grid connections of tenant %s have to wait: %s", self.store.tenant, why)
        for _, listener in self._listeners.values():
            self._selector.unregister(listener)

    def _resume_accepting(self) -> None:
        if self._paused_until_s is not None and time.monotonic() >= self._paused_until_s:
            self._paused_until_s = None
            for job, listener in self._listeners.values():
                self._selector.register(listener, selectors.EVENT_READ, job)

    def _add_listener(self, job: m.Listen, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listeners[job.job] = (job, listener)
        if self._paused_until_s is None:
            self._selector.register(listener, selectors.EVENT_READ, job)

    def _remove_listener(self, job: str) -> None:
        _, stale = self._listeners.pop(job, (None, None))
        if stale is not None:
            if self._paused_until_s is None:
                self._selector.unregister(stale)
            stale.close()

    def _accept(self, job: m.Listen) -> None:
        if job.job not in self._listeners:
            return
        try:
            line, _ = self._listeners[job.job][1].accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # out of descriptors or memory: retry soon
            self._pause_accepting(str(error), _PAUSE_S)
            return
        pid, uid = peer_credentials(line)
        if uid != (os.geteuid() if job.uid is None else job.uid):
            log.warning("refused a grid connection of user %d to tenant %s", uid, self.store.tenant)
            line.close()
            return
        line.settimeout(_ANSWER_S)
        connection = self._unauthenticated[line.fileno()] = Connection(line, job, pid)
        self._connections.add(connection)
        self._selector.register(line, selectors.EVENT_READ, connection)
        if len(self._connections) >= MOST_LINES:
            self._pause_accepting(f"it has {len(self._connections)} connections")

    def _serve(self, connection: Connection) -> None:
        said = connection.receive()
        self._unread += connection.unread_growth()
        if said is None or self._unread > _MOST_UNREAD:
            self._drop_connection(connection)
            return
        connection.requests += said
        self._answer_pending(connection)

    def _answer_pending(self, connection: Connection) -> None:
        """Answer its requests in order, up to one that waits for another node."""
        while connection.requests and not connection.closed and not connection.fetching:
            request = connection.requests.popleft()
            self._answer(connection, request, partial(self._request, connection, request))

    def _answer(self, connection: Connection, request: Any, work: Callable[[], None]) -> None:
        """Run the work of a request; a failure is answered as a problem and later requests are still served."""
        try:
            work()
        except Refusal as refusal:
            self._send_problem(connection, request, refusal.problem)
        except OSError as error:
            log.info("a worker of %s does not read its answers: %s", connection.job.job, error)
            self._drop_connection(connection)
        except Exception:  # an internal error: only this worker is told
            number = secrets.token_hex(4)
            log.exception("fault %s: %s of %s", number, type(request).__name__, connection.job.job)
            problem = m.Problem(f"internal error {number} of the grid process (see its log)", "unavailable")
            self._send_problem(connection, request, problem)

    def _send_problem(self, connection: Connection, request: Any, problem: m.Problem) -> None:
        if isinstance(request, m.Release):
            return  # a Release has no answer
        try:
            connection.answer(problem)
        except OSError:
            self._drop_connection(connection)

    def _request(self, connection: Connection, request: Any) -> None:
        if isinstance(request, m.Hello):
            self._handle_hello(connection, request)
        elif not connection.session:
            raise Refusal("the first message must be Hello", "forbidden")
        elif isinstance(request, m.Goodbye):
            with self.store.lock:
                self.store.end_session(connection.session)
            self._drop_connection(connection)
        elif isinstance(request, m.Open) and self._needs_fetch(request.id):
            self._start_fetch(connection, request)
        elif isinstance(request, m.Writer):
            connection.answer(m.Placed(warm=self.store.warm), self.store.arena)
        else:
            self._do(connection, request)

    def _do(self, connection: Connection, request: Any) -> None:
        with self.store.lock:
            answer = self._execute(connection.session, request)
        if answer is not None:
            connection.answer(answer)

    # ------------------------------------------------------------ blocks from other nodes

    def _needs_fetch(self, block: str) -> bool:
        return is_id(block) and (block in self._fetches or block not in self.store.catalogue.entries)

    def _start_fetch(self, connection: Connection, request: m.Open) -> None:
        """Fetch the block from another node and answer afterwards; other workers are served meanwhile."""
        connection.fetching = True
        self._selector.unregister(connection.line)
        self._fetches.fetch(request.id, partial(self._finish_fetch, connection, request))

    def _finish_fetch(self, connection: Connection, request: m.Open, problem: m.Problem | None) -> None:
        connection.fetching = False
        if connection.closed:
            return
        self._selector.register(connection.line, selectors.EVENT_READ, connection)
        if problem is None:
            self._answer(connection, request, partial(self._do, connection, request))
        else:
            self._send_problem(connection, request, problem)
        self._answer_pending(connection)

    # ------------------------------------------------------------ requests

    def _handle_hello(self, connection: Connection, hello: m.Hello) -> None:
        if hello.token != connection.job.token:
            raise Refusal("invalid grid token", "forbidden")
        if connection.session not in ("", f"{connection.job.job}/{hello.session}"):
            raise Refusal("a connection cannot change its session", "forbidden")
        check_session(hello.session)
        if len(hello.held) > _MOST_HELD:
            raise Refusal(f"a worker may have at most {_MOST_HELD} blocks open", fix="close some")
        with self.store.lock:
            session = f"{connection.job.job}/{hello.session}"
            self.store.attach_session(
                Session(session, connection.pid, start_ticks(connection.pid), connection.job.job), hello.held
            )
        connection.session = session
        self._unauthenticated.pop(connection.line.fileno(), None)
        before, self._lines[session] = self._lines.get(session), connection
        if before is not None and before is not connection:  # requests queued there are older than this Hello
            self._drop_connection(before)
        store = self.store
        connection.answer(m.Welcome(store.tenant, store.size, store.warm, store.memory_key), store.reading)

    def _execute(self, session: str, request: Any) -> m.ToClient | None:
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
                return m.UsageAnswer(store.usage())
            case _:
                return self._blocks(request)

    def _blocks(self, request: m.AskBlocks) -> m.Blocks:
        entries = self.store.catalogue.entries
        found = sorted(one for one, entry in entries.items() if one > request.after and entry.state != RESERVED)
        page = [self.store.catalogue.info(entries[one]) for one in found[:_PAGE]]
        return m.Blocks(page, more=len(found) > _PAGE)

    def _drop_connection(self, connection: Connection) -> None:
        """Close a connection, whoever ended it; the session stays while its process lives and holds blocks."""
        connection.closed = True
        if not connection.fetching:
            self._selector.unregister(connection.line)
        self._unauthenticated.pop(connection.line.fileno(), None)
        self._unread -= connection.unread
        connection.line.close()
        self._connections.discard(connection)
        if connection.session and self._lines.get(connection.session) is connection:
            del self._lines[connection.session]
            with self.store.lock:
                self.store.disconnect_session(connection.session)
