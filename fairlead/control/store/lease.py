"""The leader's lease. Each new leader gets a higher epoch, and only writes of the current epoch are accepted."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, Update, select, update

from fairlead.control.store.schema import leadership

# Safety rests on the epoch alone, checked inside every write's transaction. Clocks only decide when a lease may be
# taken over: a wrong clock changes leadership too early or too late, but never lets two leaders write.

_ROW = select(leadership)
_KEPT = _ROW.with_for_update(read=True)


def current_epoch(conn: Connection) -> int | None:
    """The epoch that may write now, locked until the transaction ends; None after a release."""
    row = conn.execute(_KEPT).one()
    return None if row.holder is None else int(row.epoch)


def acquire(
    conn: Connection, mine: int | None, holder: str, now_s: float, ttl_s: float, is_dead: Callable[[str], bool]
) -> int | None:
    """The epoch in which ``holder`` leads from now on; None while another live holder's lease lasts."""
    row = conn.execute(_ROW.with_for_update()).one()
    if mine is not None and row.epoch == mine and row.holder is not None:
        epoch = mine
    elif row.holder is not None and row.expires_s > now_s and not is_dead(row.holder):
        return None
    else:
        epoch = int(row.epoch) + 1
    conn.execute(update(leadership).values(epoch=epoch, holder=holder, expires_s=now_s + ttl_s))
    return epoch


def expired_holder(conn: Connection, now_s: float) -> str | None:
    """The holder of an expired lease; takes no lock."""
    row = conn.execute(_ROW).one()
    return row.holder if row.expires_s <= now_s else None


def renew(conn: Connection, mine: int, now_s: float, ttl_s: float) -> bool:
    """Extend the lease; False if it is not ours any more."""
    changed = conn.execute(_ours(mine).values(expires_s=now_s + ttl_s))
    return changed.rowcount == 1


def release(conn: Connection, mine: int) -> None:
    """Let the next control plane lead at once. The epoch stays, so that the next one is higher."""
    conn.execute(_ours(mine).values(holder=None, expires_s=0.0))


def _ours(mine: int) -> Update:
    return update(leadership).where(leadership.c.epoch == mine, leadership.c.holder.is_not(None))
