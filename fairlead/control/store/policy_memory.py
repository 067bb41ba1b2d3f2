"""Stores the scheduling policy's memory from one round to the next."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import Connection, select

from fairlead.control.store.row_mapping import Insert, insert_into
from fairlead.control.store.schema import scheduler_memory


def load(conn: Connection) -> dict[str, Any]:
    body: dict[str, Any] | None = conn.execute(select(scheduler_memory.c.body)).scalar_one_or_none()
    return body or {}


def save(conn: Connection, body: Mapping[str, Any]) -> None:
    conn.execute(_save(conn.dialect.name), {"id": 1, "body": dict(body)})


@cache  # to build a statement costs more than to run it
def _save(dialect: str) -> Insert:
    row = insert_into(dialect, scheduler_memory)
    return row.on_conflict_do_update(index_elements=["id"], set_={"body": row.excluded.body})
