"""Records which tenant uploaded which code bundle. A digest alone gives no access to another tenant's code."""

from __future__ import annotations

from sqlalchemy import Connection, exists, func, select

from fairlead.control.store.row_mapping import insert_into
from fairlead.control.store.schema import bundles


def add(conn: Connection, tenant: str, digest: str, size_bytes: int, now_s: float) -> None:
    """Record an uploaded bundle; repeating it changes nothing."""
    statement = insert_into(conn.dialect.name, bundles).on_conflict_do_nothing()
    conn.execute(statement, {"tenant": tenant, "digest": digest, "size_bytes": size_bytes, "created_s": now_s})


def exists_for(conn: Connection, tenant: str, digest: str) -> bool:
    this = exists().where(bundles.c.tenant == tenant, bundles.c.digest == digest)
    return bool(conn.execute(select(this)).scalar())


def held_bytes(conn: Connection, tenant: str, *, besides: str) -> int:
    """Total size of the tenant's bundles without ``besides``."""
    others = (bundles.c.tenant == tenant, bundles.c.digest != besides)
    return int(conn.execute(select(func.coalesce(func.sum(bundles.c.size_bytes), 0)).where(*others)).scalar_one())
