"""A worker's connection to the grid process: requests with retries, reconnection, and the arena's two mappings."""

from __future__ import annotations

import os
import queue
import secrets
import socket
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fairlead import framing
from fairlead.errors import FairleadError, Unavailable
from fairlead.grid import messages as m
from fairlead.grid.mapping import Mapping
from fairlead.unix_sockets import connect

_Answer = TypeVar("_Answer", bound=msgspec.Struct)
_AGAIN_S = 0.02
_ANSWER_S = 120.0  # the grid process may have to spill gigabytes first


class GridConnection:
    """One request at a time. Releases go out with the next request, or at once while the connection is idle."""

    def __init__(self, path: Path, token: str, wait_s: float) -> None:
        self._path, self._token, self._wait_s = path, token, wait_s
        self._read: Mapping | None = None
        self._write: Mapping | None = None
        self._closed = False
        self._reset()
        with self._lock:
            self.welcome = self._connect()

    def _reset(self) -> None:
        """Start a session of this process; a forked child starts its own, the parent keeps its pins and connection."""
        self._pid = os.getpid()
        self.session = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._held: dict[str, int] = {}  # block -> times it is open or being written
        self._unsent_releases: deque[str] = deque()
        self._warming: queue.SimpleQueue[tuple[Mapping, int, int]] = queue.SimpleQueue()
        self._warmer: threading.Thread | None = None

    def reset_after_fork(self) -> bool:
        """True in a forked child at its first call; starts a session of its own there."""
        if self._pid == os.getpid():
            return False
        self._reset()
        return True

    # ------------------------------------------------------------ mappings

    def reading(self, warm: int = 0) -> Mapping:
        """The arena, mapped read-only."""
        assert self._read is not None
        self._prefault_later(self._read, 0, warm)
        return self._read

    def writing(self) -> Mapping:
        """The arena, mapped writable; requested at the first put."""
        if self._write is None:
            with self._lock:
                answer, descriptors = self._exchange(m.Writer(), 1)
                self._write = Mapping(descriptors[0], self.welcome.size, writable=True)
                os.close(descriptors[0])
            assert isinstance(answer, m.Placed)
            self._prefault_later(self._write, 0, answer.warm)
        return self._write

    def prefault_later(self, offset: int, nbytes: int) -> None:
        """Prefault these pages in the background."""
        assert self._read is not None
        self._prefault_later(self._read, offset, nbytes)

    def _prefault_later(self, arena: Mapping, offset: int, nbytes: int) -> None:
        if arena.is_prefaulted(offset, nbytes):
            return
        self._warming.put((arena, offset, nbytes))
        if self._warmer is None:
            self._warmer = threading.Thread(target=self._warm, name="fairlead-grid", daemon=True)
            self._warmer.start()

    def _warm(self) -> None:
        while True:
            arena, offset, nbytes = self._warming.get()
            arena.prefault(offset, nbytes)

    def prefault_all(self) -> None:
        """Prefault all allocated pages of the arena in both mappings; used by benchmarks."""
        for arena in (self._read, self._write):
            if arena is not None:
                arena.prefault(0, self.welcome.warm)

    # ------------------------------------------------------------ requests

    def ask(self, request: Any, kind: type[_Answer] = m.Placed) -> _Answer:  # type: ignore[assignment]
        """Send a request and return the answer; raises the error that the grid process answers with."""
        self.reset_after_fork()
        with self._lock:
            try:
                answer, _ = self._exchange(request)
                self._count_open(request)
            except FairleadError:
                raise
            except BaseException:  # an interrupt: the answer is lost, so the connection cannot be used again
                self._disconnect()
                raise
        self._send_pending_releases()
        if not isinstance(answer, kind):
            raise Unavailable(f"the grid process answers {type(answer).__name__}")
        return answer

    def _count_open(self, request: Any) -> None:
        if isinstance(request, m.Open | m.Reserve):
            self._held[request.id] = self._held.get(request.id, 0) + 1
        elif isinstance(request, m.Commit):
            self._held.pop(request.id, None)

    def release(self, block: str, session: str) -> None:
        """Release a block. Safe in a finaliser that the garbage collector runs in the middle of a request."""
        if self._pid != os.getpid() or session != self.session:
            return
        self._unsent_releases.append(block)
        self._send_pending_releases()

    def _send_pending_releases(self) -> None:
        """Send the waiting releases, unless another thread is in a request: that thread sends them afterwards."""
        while self._unsent_releases and self._socket is not None and self._lock.acquire(blocking=False):
            try:
                self._flush()
                self._say_goodbye()
            finally:
                self._lock.release()

    def _flush(self) -> None:
        while self._unsent_releases and self._socket is not None:
            block = self._unsent_releases.popleft()
            if self._held.get(block, 0) > 1:
                self._held[block] -= 1
            elif self._held.pop(block, None):
                self._send_oneway(m.Release(block))

    def _send_oneway(self, message: m.Release | m.Goodbye) -> None:
        """Send a message without an answer. A failed send closes the connection; the next Hello lists what is held."""
        assert self._socket is not None
        try:
            self._socket.sendall(framing.pack(message))
        except OSError:
            self._disconnect()
        except BaseException:
            self._disconnect()
            raise

    def _say_goodbye(self) -> None:
        """End the session after :meth:`close`, once no block is open or being written."""
        if self._closed and not self._held and self._socket is not None:
            self._send_oneway(m.Goodbye())
            self._disconnect()

    def _exchange(self, request: Any, descriptors: int = 0) -> tuple[Any, list[int]]:
        """Send the request until it is answered; every request is idempotent."""
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                if self._socket is None:
                    self._connect()
                self._flush()
                if self._socket is None:
                    raise ConnectionResetError("connection closed")
                self._socket.sendall(framing.pack(request))
                answer, received = self._receive(descriptors)
            except OSError as error:
                self._disconnect()
                if self._closed or time.monotonic() > deadline:
                    raise Unavailable(f"the grid process does not answer: {error}") from None
                time.sleep(_AGAIN_S)
                continue
            except BaseException:  # a late answer must not be taken for the next request's
                self._disconnect()
                raise
            if isinstance(answer, m.Problem):
                document = {"code": answer.code, "detail": answer.error, "fix": answer.fix or None}
                raise FairleadError.from_problem(document)
            return answer, received

    def _connect(self) -> m.Welcome:
        deadline = time.monotonic() + self._wait_s
        while True:
            try:
                self._socket = connect(self._path, timeout_s=_ANSWER_S)
                self._socket.sendall(framing.pack(m.Hello(self._token, self.session, list(self._held))))
                welcome, descriptors = self._receive(1)
                break
            except OSError as error:
                self._disconnect()
                if self._closed or time.monotonic() > deadline:
                    raise Unavailable(f"no connection to the grid of this node: {error}") from None
                time.sleep(_AGAIN_S)
            except BaseException:
                self._disconnect()
                raise
        if not isinstance(welcome, m.Welcome):
            self._disconnect()
            said = welcome.error if isinstance(welcome, m.Problem) else "no welcome"
            raise FairleadError.from_problem({"code": getattr(welcome, "code", "unavailable"), "detail": said})
        if self._read is None:
            self._read = Mapping(descriptors[0], welcome.size, writable=False)
            self._prefault_later(self._read, 0, welcome.warm)
        for descriptor in descriptors:
            os.close(descriptor)
        return welcome

    def _receive(self, descriptors: int) -> tuple[Any, list[int]]:
        assert self._socket is not None
        unpacker, received = framing.Unpacker(m.ToClient), []
        while True:
            if descriptors:
                data, got, _, _ = socket.recv_fds(self._socket, 1 << 18, descriptors)
                received += got
            else:
                data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionResetError("connection closed")
            if messages := unpacker.feed(data):
                return messages[0], received

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """Allow no further requests. Open blocks stay pinned until they are released or the process ends."""
        with self._lock:
            self._closed = True
            self._flush()
            self._say_goodbye()
