"""Gives the disk back what removed rows took, a little at a time. PostgreSQL's autovacuum does that by itself."""

from __future__ import annotations

import shutil
import sqlite3
import time
from pathlib import Path

import structlog
from sqlalchemy import Connection, select

from fairlead.control.store.connections import Engines
from fairlead.control.store.schema import leadership

PAGES = 512
"""That one step gives back: others write between two steps."""
SPARE_PAGES = 256
"""Free pages that stay, since new rows will want them soon."""
CONVERTED_BYTES = 512 << 20
"""An older file of so much is converted by writing it anew, which takes some seconds."""

_INCREMENTAL = 2

log = structlog.get_logger()


def give_back(conn: Connection) -> int:
    """Cut free pages off the end of the file. Returns how many; 0: that is all for now."""
    if conn.dialect.name != "sqlite" or _pragma(conn, "auto_vacuum") != _INCREMENTAL:
        return 0
    before = _pragma(conn, "freelist_count")
    pages = min(PAGES, before - SPARE_PAGES)
    if pages <= 0:
        return 0
    for _ in range(pages):  # the driver asks for one step of a statement without columns, which is one page
        conn.exec_driver_sql("PRAGMA incremental_vacuum(1)").close()
    return before - _pragma(conn, "freelist_count")


def _pragma(conn: Connection, name: str) -> int:
    return int(conn.exec_driver_sql(f"PRAGMA {name}").scalar_one())


def convert(engines: Engines) -> None:
    """Let a SQLite file of an older Fairlead give pages back from now on, if it is small enough and nobody leads it."""
    if engines.writer.dialect.name != "sqlite":
        return
    path = Path(str(engines.writer.url.database))
    with engines.reader.connect() as conn:  # takes no lock: a standby starts beside a leader that hangs within a write
        if _pragma(conn, "auto_vacuum") == _INCREMENTAL:
            return
        led_until_s = conn.execute(select(leadership.c.expires_s)).scalar() or 0.0
    size = path.stat().st_size
    if led_until_s > time.time() or size > CONVERTED_BYTES or shutil.disk_usage(path.parent).free < 2 * size:
        log.info("the store's file keeps the size that it had once", size_bytes=size)
        return
    raw = engines.writer.raw_connection()
    try:
        raw.cursor().execute(f"PRAGMA auto_vacuum={_INCREMENTAL}")
        raw.cursor().execute("VACUUM")
    except sqlite3.OperationalError as error:  # somebody reads: the next who opens it tries again
        log.info("the store's file was not converted", error=str(error))
    finally:
        raw.close()
