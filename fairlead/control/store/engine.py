"""Opens the database, runs consistent reads and grouped durable writes, and holds the leader's lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, cast

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from fairlead.control.observability import live_metrics, metric_families
from fairlead.control.store import lease, vacuum
from fairlead.control.store.connections import READERS, Engines, connect, is_lock_timeout, store_error
from fairlead.control.store.migrate import migrate
from fairlead.control.store.reserve import RESERVE_BYTES, Reserve
from fairlead.control.store.writer import QueuedWrite, Writer
from fairlead.errors import LostLeadership, Unavailable

T = TypeVar("T")
Clock = Callable[[], float]


class Store:
    """One open database. Reads run in parallel; one thread writes, and groups many writes into one commit."""

    def __init__(self, engines: Engines, clock: Clock, writer: Writer | None = None) -> None:
        """``writer`` replaces the writer thread in simulations."""
        self._engines = engines
        self._clock = clock
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self._writer = writer or Writer(engines.writer)
        self._ttl_s = 3.0
        self.epoch: int | None = None  # None: this process does not lead
        self.unavailable_reason: str | None = None  # why the last access failed; None: it worked

    @classmethod
    def open(cls, url: str, *, clock: Clock = time.time) -> Store:
        """Connect and migrate the schema. ``sqlite:///path`` or ``postgresql://user@host/database``."""
        engines = connect(url)
        try:
            migrate(engines)
            vacuum.enable_incremental(engines)
        except BaseException:
            engines.dispose()
            raise
        return cls(engines, clock)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a read-only closure in one consistent snapshot and return its result."""
        began_s = time.perf_counter()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, work)
        finally:
            live_metrics.observe(metric_families.STORE_READ, time.perf_counter() - began_s)

    def _read(self, work: Callable[[Connection], T]) -> T:
        try:
            with self._engines.reader.connect() as conn:
                found = work(conn)
        except DBAPIError as error:
            failure = store_error(error)
            if not isinstance(failure, Unavailable):
                raise
            self.unavailable_reason = str(failure)
            raise failure from error
        self.unavailable_reason = None
        return found

    async def write(self, work: Callable[[Connection], T], *, unfenced: bool = False) -> T:
        """Run a closure in a write transaction; returns its result once it is on disk.

        An exception undoes only this closure.

        Raises :class:`LostLeadership`, with nothing written, unless this process leads; ``unfenced`` work needs no
        leader (first set-up, offline administration). Cancelling the caller does not undo its work.
        """
        epoch = None if unfenced else self._require_epoch()
        try:
            return cast(T, await self._writer.put(QueuedWrite(work, epoch)))
        except LostLeadership:
            self._clear_epoch(epoch)
            raise

    async def acquire_lease(
        self, holder: str, ttl_s: float = 3.0, *, is_dead: Callable[[str], bool] = lambda holder: False,
        fence: Callable[[str], None] = lambda holder: None,
    ) -> int | None:  # fmt: skip
        """Take or keep the lease; returns the epoch in which this process leads, or None while another process leads.

        A lease is taken over before it expires when ``is_dead(holder)``. When the lease has expired but somebody still
        holds the database lock, ``fence(holder)`` is called: it may take the lock from a holder that hangs.
        """
        mine = self.epoch
        self._ttl_s = ttl_s
        take = QueuedWrite(
            lambda conn: lease.acquire(conn, mine, holder, self._clock(), ttl_s, is_dead),
            None,
            alone=True,
            on_commit=self._set_epoch,
        )
        try:
            return cast(int | None, await self._writer.put(take, first=True))
        except Unavailable as error:
            if not is_lock_timeout(error.__cause__):
                raise
        # A leader that was stopped in the midst of a write leads until its locks are released.
        overdue = await self.read(lambda conn: lease.expired_holder(conn, self._clock()))
        if overdue is not None:
            fence(overdue)
        return None

    async def renew_lease(self) -> None:
        """Extend the lease. Raises :class:`LostLeadership` if another process took over."""
        mine = self._require_epoch()
        extend = QueuedWrite(lambda conn: lease.renew(conn, mine, self._clock(), self._ttl_s), None, alone=True)
        try:
            extended = await self._writer.put(extend, first=True)
        except Unavailable as error:
            self.unavailable_reason = str(error)
            raise
        self.unavailable_reason = None
        if not extended:
            self._clear_epoch(mine)
            raise LostLeadership("another control plane leads now")
        live_metrics.set_gauge(metric_families.RENEWED, self._clock())

    async def release_lease(self) -> None:
        """Give up leadership after all queued writes, so that the next control plane can lead at once."""
        mine = self.epoch
        if mine is not None:
            await self._writer.put(QueuedWrite(lambda conn: lease.release(conn, mine), None, alone=True))
            self._clear_epoch(mine)

    def keep_reserve(self, size_bytes: int = RESERVE_BYTES) -> None:
        """Reserve disk space for the store's emergencies from now on; does nothing for PostgreSQL."""
        url = self._engines.writer.url
        if url.get_backend_name() == "sqlite":
            self._writer.reserve = Reserve(Path(f"{url.database}-reserve"), size_bytes)

    async def close(self) -> None:
        """Finish queued writes and disconnect. The lease stays until it expires or is released."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._writer.close)
        if self._writer.reserve is not None:
            self._writer.reserve.drop()
        await loop.run_in_executor(None, self._readers.shutdown)
        self._engines.dispose()

    @property
    def queued_writes(self) -> int:
        """How many writes wait for the writer thread."""
        return self._writer.queued_writes

    def _require_epoch(self) -> int:
        if self.epoch is None:
            raise LostLeadership("this control plane does not lead", fix="wait until it does, and try again")
        return self.epoch

    def _set_epoch(self, epoch: int | None) -> None:
        self.epoch = epoch

    def _clear_epoch(self, epoch: int | None) -> None:
        if self.epoch == epoch:  # this process may hold a newer epoch by now
            self.epoch = None
