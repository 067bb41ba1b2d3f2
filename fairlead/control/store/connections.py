"""Creates the database engines: one reads consistent snapshots, one writes durably."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, OperationalError, StatementError
from sqlalchemy.pool import QueuePool

from fairlead.control.store import damaged_rows
from fairlead.errors import FairleadError, InvalidSpec, Unavailable

BUSY_S = 5.0
READERS = 4
_WAL_BYTES = 64 << 20  # SQLite truncates its write-ahead log to this after a checkpoint
READER_CACHE = "fairlead-reader-cache"
"""Key in ``Connection.info`` of a reader: a dict in which queries cache results between calls."""

# A leader that is stopped in the midst of a transaction must not hold its locks forever.
_WRITER_SETTINGS = "-c synchronous_commit=on -c idle_in_transaction_session_timeout=5000 -c lock_timeout=5000"
_READER_SETTINGS = "-c default_transaction_isolation=repeatable\\ read -c default_transaction_read_only=on"


@dataclass(frozen=True, slots=True)
class Engines:
    reader: Engine
    writer: Engine

    def dispose(self) -> None:
        self.reader.dispose()
        self.writer.dispose()


def connect(address: str) -> Engines:
    """Both engines for a URL. Raises :class:`InvalidSpec` for a URL that cannot hold a store."""
    url = _parse(address)
    engines = _sqlite(url) if url.get_backend_name() == "sqlite" else _postgresql(url)

    @event.listens_for(engines.reader, "connect")
    def _add_cache(_connection: Any, record: Any) -> None:
        record.info[READER_CACHE] = {}

    return engines


def _parse(address: str) -> URL:
    fix = "write sqlite:///path/to/fairlead.db or postgresql://user@host/database"
    try:
        url = make_url(address)
    except ArgumentError:
        raise InvalidSpec("is not a database URL", field="store", fix=fix) from None
    if url.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername == "sqlite" and url.database not in (None, "", ":memory:"):
        return url
    raise InvalidSpec(f"{url.drivername} cannot hold the store", field="store", fix=fix)


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _sqlite(url: URL) -> Engines:
    path = Path(str(url.database))
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file holds tenants' environment variables: mode 0600 from the first byte (the WAL files copy its mode).
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    _enable_wal(url)
    reader, writer = (
        create_engine(
            url,
            poolclass=QueuePool,
            pool_size=size,
            max_overflow=0,
            pool_use_lifo=True,
            connect_args={"timeout": BUSY_S, "check_same_thread": False, "isolation_level": None},
            json_serializer=_encode,
            json_deserializer=damaged_rows.decode_json,
        )
        for size in (READERS, 1)
    )
    for engine, begin, only in ((reader, "BEGIN", "ON"), (writer, "BEGIN IMMEDIATE", "OFF")):
        _prepare_sqlite(engine, begin, only)
    return Engines(reader, writer)


def _prepare_sqlite(engine: Engine, begin: str, query_only: str) -> None:
    @event.listens_for(engine, "connect")
    def _pragmas(connection: Any, _record: Any) -> None:
        lasting = ("synchronous=FULL", "foreign_keys=ON", f"journal_size_limit={_WAL_BYTES}")
        for pragma in (*lasting, f"query_only={query_only}"):
            connection.execute(f"PRAGMA {pragma}")

    # The driver begins late and deferred; a writer that takes the lock at once never has to retry.
    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)


def _enable_wal(url: URL) -> None:
    """Switch the file to WAL mode, which persists.

    SQLite reports "locked" at once when two processes switch, so retry here.
    """
    engine = create_engine(url, connect_args={"timeout": BUSY_S, "isolation_level": None})
    deadline = time.monotonic() + BUSY_S
    try:
        while True:
            try:
                with engine.connect() as connection:
                    if not connection.execute(text("PRAGMA page_count")).scalar():
                        # Takes effect only while the file is empty; later it would wait for writers.
                        connection.execute(text("PRAGMA auto_vacuum=INCREMENTAL"))
                    connection.execute(text("PRAGMA journal_mode=WAL"))
                return
            except OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise unavailable_error(error) from error
                time.sleep(0.01)
    finally:
        engine.dispose()


def _postgresql(url: URL) -> Engines:
    try:
        reader, writer = (
            create_engine(
                url,
                pool_size=size,
                max_overflow=0,
                pool_use_lifo=True,
                pool_pre_ping=True,
                connect_args={"options": settings, "connect_timeout": 5, "application_name": "fairlead"},
                json_serializer=_encode,
                json_deserializer=damaged_rows.decode_json,
            )
            for size, settings in ((READERS, _READER_SETTINGS), (1, _WRITER_SETTINGS))
        )
    except ModuleNotFoundError as error:
        fix = 'pip install "fairlead[postgres]"'
        raise Unavailable(f"PostgreSQL needs the package {error.name}", field="store", fix=fix) from None
    return Engines(reader, writer)


def store_error(error: BaseException) -> BaseException:
    """The error to raise for a failed statement: :class:`Unavailable`, :class:`InvalidSpec`, or the error itself."""
    cause = error.orig if isinstance(error, StatementError) else None
    failure: FairleadError
    if isinstance(error, OperationalError) or (isinstance(error, DBAPIError) and error.connection_invalidated):
        failure = unavailable_error(error)
    elif isinstance(error, DataError | OverflowError | UnicodeEncodeError) or isinstance(cause, UnicodeEncodeError):
        failure = InvalidSpec(
            "a value is too large, or is not text, for the store", fix="send smaller numbers, plain text"
        )
    else:
        return error
    failure.__cause__ = error
    return failure


def unavailable_error(error: DBAPIError) -> Unavailable:
    lines = str(error.orig).strip().splitlines()
    fix = "check the database, its disk and its permissions"
    return Unavailable(f"the store does not answer: {lines[0] if lines else 'no reason given'}", fix=fix)


def is_lock_timeout(error: BaseException | None) -> bool:
    """True if the statement gave up waiting for another process's lock."""
    cause = error.orig if isinstance(error, OperationalError) else None
    return cause is not None and ("database is locked" in str(cause) or getattr(cause, "sqlstate", "") == "55P03")
