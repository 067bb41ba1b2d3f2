"""The scheduler's memory: what one round of decisions wants the next one to see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select

from fairlead.control.store.rows import insert_into
from fairlead.control.store.schema import scheduler_memory


def load(conn: Connection) -> dict[str, Any]:
    body: dict[str, Any] | None = conn.execute(select(scheduler_memory.c.body)).scalar_one_or_none()
    return body or {}


def save(conn: Connection, body: Mapping[str, Any]) -> None:
    statement = insert_into(conn.dialect.name, scheduler_memory).values(id=1, body=dict(body))
    conn.execute(statement.on_conflict_do_update(index_elements=["id"], set_={"body": statement.excluded.body}))
