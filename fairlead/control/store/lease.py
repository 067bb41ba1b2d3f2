"""The lease by which one control plane leads: each new leader has a higher epoch, and only its writes count."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, Update, select, update

from fairlead.control.store.schema import leadership

# Safety rests on the epoch alone, checked inside every write's transaction. Clocks only say when a lease may be taken
# over: one that is wrong makes leadership change too early or too late, and never lets two leaders write.

_ROW = select(leadership)
_KEPT = _ROW.with_for_update(read=True)


def standing(conn: Connection) -> int | None:
    """The epoch that may write now, kept from changing until the transaction ends; None after a resignation."""
    row = conn.execute(_KEPT).one()
    return None if row.holder is None else int(row.epoch)


def take(
    conn: Connection, mine: int | None, holder: str, now_s: float, ttl_s: float, gone: Callable[[str], bool]
) -> int | None:
    """The epoch in which the holder leads from now on, or None while somebody else does who is not known to be gone."""
    row = conn.execute(_ROW.with_for_update()).one()
    if mine is not None and row.epoch == mine and row.holder is not None:
        epoch = mine
    elif row.holder is not None and row.expires_s > now_s and not gone(row.holder):
        return None
    else:
        epoch = int(row.epoch) + 1
    conn.execute(update(leadership).values(epoch=epoch, holder=holder, expires_s=now_s + ttl_s))
    return epoch


def overdue(conn: Connection, now_s: float) -> str | None:
    """Who holds a lease that has run out; needs no lock."""
    row = conn.execute(_ROW).one()
    return row.holder if row.expires_s <= now_s else None


def extend(conn: Connection, mine: int, now_s: float, ttl_s: float) -> bool:
    """Whether the lease was still ours and now lasts longer."""
    changed = conn.execute(_ours(mine).values(expires_s=now_s + ttl_s))
    return changed.rowcount == 1


def give_up(conn: Connection, mine: int) -> None:
    """Let the next one lead at once. The epoch stays, so that the next one's is higher."""
    conn.execute(_ours(mine).values(holder=None, expires_s=0.0))


def _ours(mine: int) -> Update:
    return update(leadership).where(leadership.c.epoch == mine, leadership.c.holder.is_not(None))
