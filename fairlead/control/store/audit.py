"""The append-only audit log: who did what to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, insert, select

from fairlead.control.records import AuditEntry
from fairlead.control.store.row_mapping import column_values
from fairlead.control.store.schema import audit

_APPEND = insert(audit)


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries to return; None: any. ``action`` may be a prefix, such as ``token.``."""

    tenant: str | None = None
    actor: str | None = None
    action: str | None = None
    since_s: float | None = None
    until_s: float | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        same = ((audit.c.tenant, self.tenant), (audit.c.actor, self.actor))
        found = [column == value for column, value in same if value is not None]
        if self.action is not None:
            found.append(audit.c.action.startswith(self.action, autoescape=True))
        if self.since_s is not None:
            found.append(audit.c.time_s >= self.since_s)
        if self.until_s is not None:
            found.append(audit.c.time_s < self.until_s)
        return found


ALL = AuditFilter()


def append(
    conn: Connection, *, time_s: float, actor: str, action: str, target: str, detail: Mapping[str, Any] | None = None,
    tenant: str | None = None,
) -> None:  # fmt: skip
    row = {"time_s": time_s, "actor": actor, "action": action, "target": target, "detail": detail or {}}
    conn.execute(_APPEND, column_values(row | {"tenant": tenant}))


def after(conn: Connection, entry_id: int, limit: int, wanted: AuditFilter = ALL) -> list[AuditEntry]:
    """The next entries after this id, oldest first."""
    query = select(audit).where(audit.c.id > entry_id, *wanted.conditions()).order_by(audit.c.id).limit(limit)
    return [AuditEntry(*row) for row in conn.execute(query)]


def before_newest(conn: Connection, count: int, wanted: AuditFilter = ALL) -> int:
    """The id after which exactly the newest ``count`` matching entries come."""
    newest = select(audit.c.id).where(*wanted.conditions()).order_by(audit.c.id.desc()).limit(count).subquery()
    first = conn.execute(select(func.min(newest.c.id))).scalar()
    return 0 if first is None else int(first) - 1
