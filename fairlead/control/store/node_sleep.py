"""Stores when nodes slept. Energy and savings are computed from it."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, or_, select, update

from fairlead.control.store.row_mapping import insert_into
from fairlead.control.store.schema import node_rests


class NodeSleep(NamedTuple):
    """One sleep of one node."""

    node: str
    from_s: float
    to_s: float | None  # None: still asleep
    woken_in_s: float | None = None  # None: unknown


def begin(conn: Connection, node: str, now_s: float) -> None:
    """The node sleeps from now on. A second call for the same sleep changes nothing."""
    if conn.execute(select(node_rests.c.node).where(node_rests.c.node == node, node_rests.c.to_s.is_(None))).first():
        return
    statement = insert_into(conn.dialect.name, node_rests).values(node=node, from_s=now_s)
    conn.execute(statement.on_conflict_do_nothing(index_elements=["node", "from_s"]))


def end(conn: Connection, node: str, now_s: float, woken_in_s: float | None = None) -> None:
    """The node woke up; changes nothing if it was awake."""
    open_ones = (node_rests.c.node == node, node_rests.c.to_s.is_(None))
    conn.execute(update(node_rests).where(*open_ones).values(to_s=now_s, woken_in_s=woken_in_s))


def between(conn: Connection, since_s: float, until_s: float) -> list[NodeSleep]:
    """The sleeps that overlap this time range."""
    inside = (node_rests.c.from_s < until_s, or_(node_rests.c.to_s.is_(None), node_rests.c.to_s > since_s))
    columns = (node_rests.c.node, node_rests.c.from_s, node_rests.c.to_s, node_rests.c.woken_in_s)
    return [NodeSleep(*row) for row in conn.execute(select(*columns).where(*inside).order_by(*columns[:2]))]
