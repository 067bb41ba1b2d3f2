"""Returns the space of deleted rows to the disk, a little at a time. PostgreSQL's autovacuum does this by itself."""

from __future__ import annotations

import shutil
import sqlite3
import time
from pathlib import Path

import structlog
from sqlalchemy import Connection, select

from fairlead.control.store.connections import Engines
from fairlead.control.store.schema import leadership

PAGES_PER_STEP = 512
"""Pages freed per step; other writes get in between two steps."""
SPARE_PAGES = 256
"""Free pages to keep for new rows."""
MAX_CONVERTED_BYTES = 512 << 20
"""Largest file of an older Fairlead that is converted: conversion rewrites it, which takes some seconds."""

_INCREMENTAL = 2

log = structlog.get_logger()


def free_pages(conn: Connection) -> int:
    """Cut free pages off the end of the file. Returns how many; 0: nothing left to free now."""
    if conn.dialect.name != "sqlite" or _pragma(conn, "auto_vacuum") != _INCREMENTAL:
        return 0
    before = _pragma(conn, "freelist_count")
    pages = min(PAGES_PER_STEP, before - SPARE_PAGES)
    if pages <= 0:
        return 0
    for _ in range(pages):  # the driver runs one step of a statement without columns: one page
        conn.exec_driver_sql("PRAGMA incremental_vacuum(1)").close()
    return before - _pragma(conn, "freelist_count")


def _pragma(conn: Connection, name: str) -> int:
    return int(conn.exec_driver_sql(f"PRAGMA {name}").scalar_one())


def enable_incremental(engines: Engines) -> None:
    """Switch a SQLite file of an older Fairlead to incremental vacuum, if it is small enough and has no leader."""
    if engines.writer.dialect.name != "sqlite":
        return
    path = Path(str(engines.writer.url.database))
    with engines.reader.connect() as conn:  # takes no lock: a leader that hangs within a write must not block a standby
        if _pragma(conn, "auto_vacuum") == _INCREMENTAL:
            return
        led_until_s = conn.execute(select(leadership.c.expires_s)).scalar() or 0.0
    size = path.stat().st_size
    if led_until_s > time.time() or size > MAX_CONVERTED_BYTES or shutil.disk_usage(path.parent).free < 2 * size:
        log.info("the store's file cannot shrink: it is in use or too large to convert", size_bytes=size)
        return
    raw = engines.writer.raw_connection()
    try:
        raw.cursor().execute(f"PRAGMA auto_vacuum={_INCREMENTAL}")
        raw.cursor().execute("VACUUM")
    except sqlite3.OperationalError as error:  # another process reads; the next start tries again
        log.info("the store's file was not switched to incremental vacuum", error=str(error))
    finally:
        raw.close()
