"""The store's door: consistent reads, grouped durable writes fenced by the leader's epoch, and the lease itself."""

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
from fairlead.control.store.connections import READERS, Engines, busy, connect, shown
from fairlead.control.store.migrate import migrate
from fairlead.control.store.reserve import RESERVE_BYTES, Reserve
from fairlead.control.store.writer import QueuedWrite, Writer
from fairlead.errors import LostLeadership, Unavailable

T = TypeVar("T")
Clock = Callable[[], float]


class Store:
    """One open database. Reads run side by side; writes one after the other, many to a commit."""

    def __init__(self, engines: Engines, clock: Clock, writer: Writer | None = None) -> None:
        """``writer``: another one than the usual thread, for simulations."""
        self._engines = engines
        self._clock = clock
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reader")
        self._writer = writer or Writer(engines.writer)
        self._ttl_s = 3.0
        self.epoch: int | None = None  # in which this process leads, as far as it knows
        self.trouble: str | None = None  # why the database does not answer, as the last attempt found it

    @classmethod
    def open(cls, url: str, *, clock: Clock = time.time) -> Store:
        """Connect and bring the schema up to date. ``sqlite:///path`` or ``postgresql://user@host/database``."""
        engines = connect(url)
        try:
            migrate(engines)
            vacuum.convert(engines)
        except BaseException:
            engines.dispose()
            raise
        return cls(engines, clock)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """What the work finds in one consistent snapshot of the store; it cannot write."""
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
            told = shown(error)
            if not isinstance(told, Unavailable):
                raise
            self.trouble = str(told)
            raise told from error
        self.trouble = None
        return found

    async def write(self, work: Callable[[Connection], T], *, unfenced: bool = False) -> T:
        """What the work returns, once it is on disk. What it raises undoes only itself.

        Raises :class:`LostLeadership`, with nothing written, unless this process leads; ``unfenced`` work needs no
        leader (first set-up, administration offline). A caller that is cancelled does not undo its work.
        """
        epoch = None if unfenced else self._leading()
        try:
            return cast(T, await self._writer.put(QueuedWrite(work, epoch)))
        except LostLeadership:
            self._lost(epoch)
            raise

    async def lead(
        self, holder: str, ttl_s: float = 3.0, *, gone: Callable[[str], bool] = lambda holder: False,
        fence: Callable[[str], None] = lambda holder: None,
    ) -> int | None:  # fmt: skip
        """The epoch in which this process leads, taken now or held already; None while another one leads.

        A lease whose holder is known to be ``gone`` need not run out first. ``fence`` is called with a holder whose
        lease has run out while somebody holds the store's lock, so that it may take the lock from one that hangs.
        """
        mine = self.epoch
        self._ttl_s = ttl_s
        take = QueuedWrite(
            lambda conn: lease.take(conn, mine, holder, self._clock(), ttl_s, gone), None, alone=True, done=self._leads
        )
        try:
            return cast(int | None, await self._writer.put(take, first=True))
        except Unavailable as error:
            if not busy(error.__cause__):
                raise
        # A leader that was stopped while it wrote: it leads until its locks are gone.
        overdue = await self.read(lambda conn: lease.overdue(conn, self._clock()))
        if overdue is not None:
            fence(overdue)
        return None

    async def renew(self) -> None:
        """Lead for another while, or :class:`LostLeadership` if somebody else took over."""
        mine = self._leading()
        extend = QueuedWrite(lambda conn: lease.extend(conn, mine, self._clock(), self._ttl_s), None, alone=True)
        try:
            extended = await self._writer.put(extend, first=True)
        except Unavailable as error:
            self.trouble = str(error)
            raise
        self.trouble = None
        if not extended:
            self._lost(mine)
            raise LostLeadership("another control plane leads now")
        live_metrics.level(metric_families.RENEWED, self._clock())

    async def resign(self) -> None:
        """Let the next one lead at once, after all that was written before."""
        mine = self.epoch
        if mine is not None:
            await self._writer.put(QueuedWrite(lambda conn: lease.give_up(conn, mine), None, alone=True))
            self._lost(mine)

    def keep_reserve(self, size_bytes: int = RESERVE_BYTES) -> None:
        """From now on keep room on the disk for the store; only a file in SQLite's format is ours to look after."""
        url = self._engines.writer.url
        if url.get_backend_name() == "sqlite":
            self._writer.reserve = Reserve(Path(f"{url.database}-reserve"), size_bytes)

    async def close(self) -> None:
        """Finish what is queued and let go of the database; the lease stays until it runs out or is resigned."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._writer.close)
        if self._writer.reserve is not None:
            self._writer.reserve.drop()
        await loop.run_in_executor(None, self._readers.shutdown)
        self._engines.dispose()

    @property
    def waiting(self) -> int:
        """How many writes wait for the writer."""
        return self._writer.waiting

    def _leading(self) -> int:
        if self.epoch is None:
            raise LostLeadership("this control plane does not lead", fix="wait until it does, and try again")
        return self.epoch

    def _leads(self, epoch: int | None) -> None:
        self.epoch = epoch

    def _lost(self, epoch: int | None) -> None:
        if self.epoch == epoch:  # it may have been taken anew meanwhile
            self.epoch = None
