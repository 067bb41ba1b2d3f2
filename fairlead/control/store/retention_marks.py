"""Records the time before which rows of a kind may be deleted. It only advances; triggers protect younger rows."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select

from fairlead.control.store.retention_schema import retained
from fairlead.control.store.row_mapping import insert_into

LINES, FINE, COARSE, AUDIT = "usage", "usage-300", "usage-3600", "audit"

_SINCE = select(retained.c.since_s).where(retained.c.kind == bindparam("of_kind"))


def kept_since(conn: Connection, kind: str) -> float:
    """All rows of this kind since that time are there; 0: none was deleted yet."""
    found = conn.execute(_SINCE, {"of_kind": kind}).scalar()
    return 0.0 if found is None else float(found)


def advance(conn: Connection, kind: str, since_s: float) -> float:
    """Allow rows before ``since_s`` to be deleted. Returns the mark, which never goes back."""
    if since_s <= (before_s := kept_since(conn, kind)):
        return before_s
    row = insert_into(conn.dialect.name, retained)
    conn.execute(row.on_conflict_do_update(retained.primary_key, set_={"since_s": row.excluded.since_s}),
                 {"kind": kind, "since_s": since_s})  # fmt: skip
    return since_s
