"""Stores measured interference: the part of its speed that a class of jobs loses when another runs on its node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Connection, delete, func, select, tuple_

from fairlead.control.store.row_mapping import insert_into
from fairlead.control.store.schema import neighbours

MAX_PAIRS = 10_000
"""Pairs that are kept; the least recently measured are dropped first."""


class PairSlowdown(NamedTuple):
    """A class of jobs beside another: the part of its speed that it loses, and the number of measurements."""

    kind: str
    beside: str
    lost: float
    seen: int

    def as_json(self) -> dict[str, str | float]:
        """As the API shows it."""
        return {"class": self.kind, "beside": self.beside, "slowdown": self.lost, "seen": self.seen}


def all_pairs(conn: Connection) -> list[PairSlowdown]:
    """Every pair, ordered by class."""
    columns = (neighbours.c.kind, neighbours.c.beside, neighbours.c.lost, neighbours.c.seen)
    return [
        PairSlowdown(*row) for row in conn.execute(select(*columns).order_by(neighbours.c.kind, neighbours.c.beside))
    ]


def slowdowns(conn: Connection) -> dict[tuple[str, str], float]:
    """The part of its speed that a class loses, by (class, neighbour's class)."""
    return {(known.kind, known.beside): known.lost for known in all_pairs(conn) if isinstance(known.lost, int | float)}


def record_slowdowns(conn: Connection, lost: Mapping[tuple[str, str], float], now_s: float) -> None:
    """Store the updated estimates of these pairs and count one more measurement."""
    for (kind, beside), part in sorted(lost.items()):
        row = {"kind": kind, "beside": beside, "lost": part, "seen": 1, "changed_s": now_s}
        statement = insert_into(conn.dialect.name, neighbours).values(row)
        fresh = {"lost": part, "changed_s": now_s, "seen": neighbours.c.seen + 1}
        conn.execute(statement.on_conflict_do_update(index_elements=["kind", "beside"], set_=fresh))
    if lost:
        _forget(conn)


def _forget(conn: Connection) -> None:
    count = conn.execute(select(func.count()).select_from(neighbours)).scalar_one()
    if count > MAX_PAIRS:
        pairs = (neighbours.c.kind, neighbours.c.beside)
        oldest = select(*pairs).order_by(neighbours.c.changed_s, *pairs).limit(count - MAX_PAIRS)
        gone = [(kind, beside) for kind, beside in conn.execute(oldest)]
        conn.execute(delete(neighbours).where(tuple_(*pairs).in_(gone)))
