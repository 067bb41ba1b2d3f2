"""The real store without threads and without a disk that is waited for: its trouble comes from the seed."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError

from fairlead.control.records import Role, Token
from fairlead.control.store import Store, tenants, tokens
from fairlead.control.store.connections import Engines, connect
from fairlead.control.store.writer import Writer
from fairlead.specs import Policy, Retention, TenantSpec
from tests.storm.more import KEPT_S

TENANTS = ("vision", "text", "audio")
TOKEN = Token("tok", None, Role.ADMIN, "", "of all clients", 1.0)


class Trouble:
    """What is wrong with the database now."""

    def __init__(self) -> None:
        self.silent = False  # neither reads nor writes are answered
        self.slow_s = 0.0  # so long a commit may take
        self.unanswered = 0  # so many commits are made, and their answers are lost

    def before(self) -> None:
        if self.silent:
            raise _no_answer()

    def after(self) -> None:
        if self.unanswered > 0:
            self.unanswered -= 1
            raise _no_answer()


def _no_answer() -> OperationalError:
    return OperationalError("COMMIT", None, sqlite3.OperationalError("disk I/O error"))


class TroubledEngine:
    """An engine whose database has trouble at times; says when something was committed."""

    def __init__(self, engine: Engine, trouble: Trouble, committed: Callable[[], None]) -> None:
        self._engine, self._trouble, self._committed = engine, trouble, committed

    def connect(self) -> Any:
        self._trouble.before()
        return self._engine.connect()

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        self._trouble.before()
        with self._engine.begin() as connection:
            yield connection
        self._committed()
        self._trouble.after()

    def dispose(self) -> None:
        """The connections serve the next leader, too."""


class InlineWriter(Writer):
    """Commits on the loop, a moment after the first work came."""

    def __init__(self, engine: Any, loop: asyncio.AbstractEventLoop, delays: Random, trouble: Trouble) -> None:
        self._loop, self._delays, self._trouble, self._due = loop, delays, trouble, False
        super().__init__(engine)

    def _start(self) -> None:
        self._thread = None  # type: ignore[assignment]

    def _notify(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_later(self._delays.uniform(0.0005, 0.01 + self._trouble.slow_s), self._turn)

    def _turn(self) -> None:
        self._due = False
        if self._queue:
            self._write(self._next())
        if self._queue:
            self._notify()


class Database:
    """One file that all seeds of this process use in turn, so that its statements are compiled once."""

    def __init__(self, folder: Path, weights: Mapping[str, float] | None = None) -> None:
        """``weights`` of its tenants; without: those of the storm, all alike."""
        self.path, self._fresh = folder / "storm.db", folder / "fresh.db"
        asyncio.run(_made(self._fresh, weights or dict.fromkeys(TENANTS, 1.0)))
        self.engines: Engines = self._connected()

    def _connected(self) -> Engines:
        shutil.copy(self._fresh, self.path)
        engines = connect(f"sqlite:///{self.path}")
        for engine in (engines.reader, engines.writer):

            @event.listens_for(engine, "connect")
            def _hurry(connection: Any, _record: Any) -> None:
                connection.execute("PRAGMA synchronous=OFF")

        return engines

    def renew(self) -> None:
        """As if it had just been made."""
        self.engines.dispose()
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        shutil.copy(self._fresh, self.path)

    def look(self) -> sqlite3.Connection:
        """A connection for whoever checks what is stored."""
        return sqlite3.connect(self.path, isolation_level=None)

    def opened(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], trouble: Trouble, delays: Random,
        committed: Callable[[], None],
    ) -> Store:  # fmt: skip
        """The store as one leader has it."""
        reader: Any = TroubledEngine(self.engines.reader, trouble, committed)
        writer: Any = TroubledEngine(self.engines.writer, trouble, committed)
        return Store(Engines(reader, writer), clock, InlineWriter(writer, loop, delays, trouble))


async def _made(path: Path, weights: Mapping[str, float]) -> None:
    store = Store.open(f"sqlite:///{path}")
    for name, weight in weights.items():
        spec = TenantSpec(name=name, weight=weight, policy=Policy(retention=Retention(jobs=KEPT_S)))
        await store.write(lambda connection, spec=spec: tenants.insert(connection, spec, 1.0), unfenced=True)
    await store.write(lambda connection: tokens.insert(connection, TOKEN), unfenced=True)
    await store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
