"""One thread that writes: all work that waits goes into one transaction, so that many callers share one fsync."""

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
from fairlead.control.store.connections import shown
from fairlead.control.store.reserve import Reserve, is_full
from fairlead.errors import LostLeadership, Unavailable

GROUP = 256
"""So many at the most share a transaction: a lease must be renewed in between."""


@dataclass(slots=True, eq=False)
class QueuedWrite:
    """One closure on its way through the writer."""

    run: Callable[[Connection], Any]
    epoch: int | None  # the leader it belongs to; None: needs none
    alone: bool = False  # a change of the lease: in a transaction of its own
    done: Callable[[Any], None] | None = None  # called in the writer's thread once committed
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    asked_s: float = field(default_factory=time.perf_counter)
    future: asyncio.Future[Any] = field(init=False)
    value: Any = None
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.future = self.loop.create_future()

    def resolve(self) -> None:
        if self.future.done():  # its caller went away; the work counts all the same
            return
        if self.error is None:
            self.future.set_result(self.value)
        else:
            self.future.set_exception(self.error)


class Writer:
    """Queue and thread. Nothing is answered before it is committed."""

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
        """The value of the work, once it is durable."""
        with self._wake:
            if self._closed:
                raise Unavailable("the store is closed")
            if first:
                self._queue.appendleft(work)
            else:
                self._queue.append(work)
            self._rouse()
        return await work.future

    def _rouse(self) -> None:
        """There is work for the thread."""
        self._wake.notify()

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        with self._wake:
            self._closed = True
            self._rouse()
        self._thread.join()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def _serve(self) -> None:
        while group := self._next():
            self._write(group)

    def _write(self, group: Sequence[QueuedWrite]) -> None:
        """Commit a group, and answer its callers."""
        began_s = time.perf_counter()
        if self.reserve is not None:
            self.reserve.keep()
        self._commit(group)
        durable_s = time.perf_counter()
        live_metrics.observe(metric_families.STORE_COMMIT, durable_s - began_s)
        for work in group:
            live_metrics.observe(metric_families.STORE_WRITE, durable_s - work.asked_s)
        for loop in {work.loop for work in group}:
            _answer(loop, [work for work in group if work.loop is loop])

    def _next(self) -> list[QueuedWrite]:
        with self._wake:
            while not self._queue and not self._closed:
                self._wake.wait()
            group: list[QueuedWrite] = []
            while self._queue and len(group) < GROUP and not (group and self._queue[0].alone):
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
        except Exception as error:  # noqa: BLE001 (the transaction failed whole; the thread lives, its callers raise this)
            live_metrics.count(metric_families.STORE_FAILED)
            for work in group:
                work.error = shown(error)
        for work in group:
            if work.done is not None and work.error is None:
                work.done(work.value)

    def _transact(self, group: Sequence[QueuedWrite]) -> None:
        with self._engine.begin() as conn:
            epoch = lease.standing(conn) if any(work.epoch is not None for work in group) else None
            for work in group:
                work.error = None
                if work.epoch is not None and work.epoch != epoch:
                    work.error = LostLeadership("another control plane leads now")
                else:
                    _attempt(conn, work, single=len(group) == 1)


def _attempt(conn: Connection, work: QueuedWrite, *, single: bool) -> None:
    """Run one: what it raises undoes only itself, unless the connection is gone. Beside others it has a savepoint."""
    savepoint = None if single else conn.begin_nested()
    try:
        work.value = work.run(conn)
    except BaseException as error:  # its caller raises it again
        if isinstance(error, DBAPIError) and (error.connection_invalidated or is_full(error)):
            raise
        (conn if savepoint is None else savepoint).rollback()
        work.error = shown(error)
    else:
        if savepoint is not None:
            savepoint.commit()


def _answer(loop: asyncio.AbstractEventLoop, works: list[QueuedWrite]) -> None:
    def resolve() -> None:
        for work in works:
            work.resolve()

    with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits any more
        loop.call_soon_threadsafe(resolve)
