"""The writer thread: groups queued writes into one transaction, so that many callers share one fsync."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from fairlead.control.observability import live_metrics, metric_families
from fairlead.control.store import lease
from fairlead.control.store.connections import store_error
from fairlead.control.store.reserve import Reserve, is_full
from fairlead.errors import LostLeadership, Unavailable

MAX_GROUP = 256
"""Writes per transaction at most: lease renewals must get in between."""


@dataclass(slots=True, eq=False)
class QueuedWrite:
    """One queued closure and its result."""

    run: Callable[[Connection], Any]
    epoch: int | None  # writes only while this epoch leads; None: always
    alone: bool = False  # lease changes run in a transaction of their own
    on_commit: Callable[[Any], None] | None = None  # called in the writer thread after the commit
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    queued_s: float = field(default_factory=time.perf_counter)
    future: asyncio.Future[Any] = field(init=False)
    value: Any = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.future = self.loop.create_future()

    def resolve(self) -> None:
        if self.future.done():  # its caller was cancelled; the write stays committed
            return
        if self.error is None:
            self.future.set_result(self.value)
        else:
            self.future.set_exception(self.error)


class Writer:
    """The queue and its thread. Callers get their answer only after the commit."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queue: deque[QueuedWrite] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self.reserve: Reserve | None = None
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="store-writer", daemon=True)
        self._thread.start()

    async def put(self, work: QueuedWrite, *, first: bool = False) -> Any:
        """Queue a write; returns its value once it is durable."""
        with self._wake:
            if self._closed:
                raise Unavailable("the store is closed")
            if first:
                self._queue.appendleft(work)
            else:
                self._queue.append(work)
            self._notify()
        return await work.future

    def _notify(self) -> None:
        """Wake the thread: there is work."""
        self._wake.notify()

    def close(self) -> None:
        """Finish queued writes and end the thread."""
        with self._wake:
            self._closed = True
            self._notify()
        self._thread.join()

    @property
    def queued_writes(self) -> int:
        return len(self._queue)

    def _serve(self) -> None:
        while group := self._next():
            self._write(group)

    def _write(self, group: Sequence[QueuedWrite]) -> None:
        """Commit a group and resolve its callers."""
        began_s = time.perf_counter()
        if self.reserve is not None:
            self.reserve.keep()
        self._commit(group)
        durable_s = time.perf_counter()
        live_metrics.observe(metric_families.STORE_COMMIT, durable_s - began_s)
        for work in group:
            live_metrics.observe(metric_families.STORE_WRITE, durable_s - work.queued_s)
        for loop in {work.loop for work in group}:
            _resolve_callers(loop, [work for work in group if work.loop is loop])

    def _next(self) -> list[QueuedWrite]:
        with self._wake:
            while not self._queue and not self._closed:
                self._wake.wait()
            group: list[QueuedWrite] = []
            while self._queue and len(group) < MAX_GROUP and not (group and self._queue[0].alone):
                group.append(self._queue.popleft())
                if group[-1].alone:
                    break
            return group

    def _commit(self, group: Sequence[QueuedWrite]) -> None:
        try:
            try:
                self._transact(group)
            except DBAPIError as error:
                if self.reserve is None or not is_full(error) or not self.reserve.give_up():
                    raise
                self._transact(group)
        except Exception as error:  # noqa: BLE001 (the whole transaction failed: its callers raise this, the thread goes on)
            live_metrics.count(metric_families.STORE_FAILED)
            for work in group:
                work.error = store_error(error)
        for work in group:
            if work.on_commit is not None and work.error is None:
                work.on_commit(work.value)

    def _transact(self, group: Sequence[QueuedWrite]) -> None:
        with self._engine.begin() as conn:
            epoch = lease.current_epoch(conn) if any(work.epoch is not None for work in group) else None
            for work in group:
                work.error = None
                if work.epoch is not None and work.epoch != epoch:
                    work.error = LostLeadership("another control plane leads now")
                else:
                    _run_write(conn, work, single=len(group) == 1)


def _run_write(conn: Connection, work: QueuedWrite, *, single: bool) -> None:
    """Run one write. Its exception undoes only itself (savepoint), unless the connection is lost or the disk full."""
    savepoint = None if single else conn.begin_nested()
    try:
        work.value = work.run(conn)
    except BaseException as error:  # raised again in the caller
        if isinstance(error, DBAPIError) and (error.connection_invalidated or is_full(error)):
            raise
        (conn if savepoint is None else savepoint).rollback()
        work.error = store_error(error)
    else:
        if savepoint is not None:
            savepoint.commit()


def _resolve_callers(loop: asyncio.AbstractEventLoop, works: list[QueuedWrite]) -> None:
    def resolve() -> None:
        for work in works:
            work.resolve()

    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
        loop.call_soon_threadsafe(resolve)
