"""Up to when rows were given up, by kind. It only moves on; the database lets no younger row of ledger or audit go."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select

from fairlead.control.store.retention_schema import retained
from fairlead.control.store.row_mapping import insert_into

LINES, FINE, COARSE, AUDIT = "usage", "usage-300", "usage-3600", "audit"

_SINCE = select(retained.c.since_s).where(retained.c.kind == bindparam("of_kind"))


def since(conn: Connection, kind: str) -> float:
    """All rows of this kind from then on are there; 0 while none was given up."""
    found = conn.execute(_SINCE, {"of_kind": kind}).scalar()
    return 0.0 if found is None else float(found)


def advance(conn: Connection, kind: str, since_s: float) -> float:
    """Give up what is older, or as much as was given up before. Returns up to when that is."""
    if since_s <= (before_s := since(conn, kind)):
        return before_s
    row = insert_into(conn.dialect.name, retained)
    conn.execute(row.on_conflict_do_update(retained.primary_key, set_={"since_s": row.excluded.since_s}),
                 {"kind": kind, "since_s": since_s})  # fmt: skip
    return since_s
