"""Who did what to whom: an append-only log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert, select

from fairlead.control.records import AuditEntry
from fairlead.control.store.rows import column_values
from fairlead.control.store.schema import audit


def append(
    conn: Connection, *, time_s: float, actor: str, action: str, target: str, detail: Mapping[str, Any] | None = None
) -> None:
    row = {"time_s": time_s, "actor": actor, "action": action, "target": target, "detail": detail or {}}
    conn.execute(insert(audit), column_values(row))


def after(conn: Connection, entry_id: int, limit: int) -> list[AuditEntry]:
    """The next entries after this one, oldest first."""
    query = select(audit).where(audit.c.id > entry_id).order_by(audit.c.id).limit(limit)
    return [AuditEntry(*row) for row in conn.execute(query)]
