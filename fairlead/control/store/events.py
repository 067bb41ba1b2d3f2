"""The log of events, in the order in which they were written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, func, insert, select, text

from fairlead.control.records import LoggedEvent
from fairlead.control.store.row_mapping import column_values
from fairlead.control.store.schema import events

_AFTER = select(events).where(events.c.id > bindparam("after")).order_by(events.c.id).limit(bindparam("most"))
_APPEND = insert(events).returning(events.c.id)


def append(
    conn: Connection, *, time_s: float, kind: str, text: str, tenant: str | None = None, job: str | None = None,
    node: str | None = None, facts: Mapping[str, Any] | None = None,
) -> int:  # fmt: skip
    """Append an event and return its id. Ids only grow, so a follower asks for events after the last id it saw."""
    row = {"time_s": time_s, "kind": kind, "text": text, "tenant": tenant, "job": job, "node": node}
    return int(conn.execute(_APPEND, column_values(row | {"facts": facts or {}})).scalar_one())


def after(
    conn: Connection, event_id: int, limit: int, tenant: str | None = None, job: str | None = None
) -> list[LoggedEvent]:
    """The next events after this id, oldest first; only of one tenant or job if given."""
    if tenant is None and job is None:
        rows = conn.execute(_AFTER, {"after": event_id, "most": limit})
    else:
        query = select(events).where(events.c.id > event_id, *_of(tenant, job))
        rows = conn.execute(query.order_by(events.c.id).limit(limit))
    return [LoggedEvent(*row) for row in rows]


def last(conn: Connection, job: str, kind: str) -> LoggedEvent | None:
    """The job's newest event of this kind."""
    query = select(events).where(events.c.job == job, events.c.kind == kind).order_by(events.c.id.desc()).limit(1)
    row = conn.execute(query).first()
    return None if row is None else LoggedEvent(*row)


def budgets_used_up(conn: Connection, since_s: float) -> list[LoggedEvent]:
    """All events of used-up budgets since then, oldest first."""
    used_up = text("kind = 'budget-used-up'")  # a literal, so that the partial index is used
    query = select(events).where(used_up, events.c.time_s >= since_s).order_by(events.c.time_s, events.c.id)
    return [LoggedEvent(*row) for row in conn.execute(query)]


def before_newest(conn: Connection, count: int, tenant: str | None = None, job: str | None = None) -> int:
    """The id after which exactly the newest ``count`` events come, of one tenant or job if given."""
    newest = select(events.c.id).where(*_of(tenant, job)).order_by(events.c.id.desc()).limit(count).subquery()
    first = conn.execute(select(func.min(newest.c.id))).scalar()
    return newest_id(conn) if first is None else int(first) - 1


def _of(tenant: str | None, job: str | None) -> list[ColumnElement[bool]]:
    conditions = ((events.c.tenant, tenant), (events.c.job, job))
    return [column == wanted for column, wanted in conditions if wanted is not None]


def newest_id(conn: Connection) -> int:
    """The id of the newest event, 0 before the first."""
    return int(conn.execute(select(func.max(events.c.id))).scalar() or 0)
