"""Tenants' secrets as they are kept: sealed, so that the store alone tells nothing but their names."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, delete, select

from fairlead.control.records import Secret
from fairlead.control.store.row_mapping import fields, insert_into
from fairlead.control.store.schema import secrets


def put(conn: Connection, secret: Secret) -> None:
    """Keep the secret in the place of an earlier one of its name."""
    row = fields(secret)
    changes = {name: row[name] for name in ("ciphertext", "changed_s", "changed_by")}
    statement = insert_into(conn.dialect.name, secrets)
    conn.execute(statement.on_conflict_do_update(index_elements=["tenant", "name"], set_=changes), row)


def of_tenant(conn: Connection, tenant: str) -> list[Secret]:
    """The tenant's secrets by their names."""
    query = select(secrets).where(secrets.c.tenant == tenant).order_by(secrets.c.name)
    return [Secret(*row) for row in conn.execute(query)]


def unknown(conn: Connection, tenant: str, names: Iterable[str]) -> list[str]:
    """Which of these the tenant does not have, in the order in which they were named."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return []
    query = select(secrets.c.name).where(secrets.c.tenant == tenant, secrets.c.name.in_(wanted))
    known = set(conn.execute(query).scalars())
    return [name for name in wanted if name not in known]


def remove(conn: Connection, tenant: str, name: str) -> bool:
    """Whether there was one to remove."""
    return bool(conn.execute(delete(secrets).where(secrets.c.tenant == tenant, secrets.c.name == name)).rowcount)
