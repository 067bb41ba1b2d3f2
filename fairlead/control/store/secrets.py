"""Stores tenants' secrets in encrypted form. The database alone reveals only their names."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, delete, select

from fairlead.control.records import Secret
from fairlead.control.store.row_mapping import insert_into, row_of
from fairlead.control.store.schema import secrets


def put(conn: Connection, secret: Secret) -> None:
    """Store the secret, replacing an earlier one of its name."""
    row = row_of(secret)
    changes = {name: row[name] for name in ("ciphertext", "changed_s", "changed_by")}
    statement = insert_into(conn.dialect.name, secrets)
    conn.execute(statement.on_conflict_do_update(index_elements=["tenant", "name"], set_=changes), row)


def list_secrets(conn: Connection, tenant: str) -> list[Secret]:
    """The tenant's secrets ordered by name."""
    query = select(secrets).where(secrets.c.tenant == tenant).order_by(secrets.c.name)
    return [Secret(*row) for row in conn.execute(query)]


def missing_names(conn: Connection, tenant: str, names: Iterable[str]) -> list[str]:
    """Of these names: the ones for which the tenant has no secret, in the given order."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return []
    query = select(secrets.c.name).where(secrets.c.tenant == tenant, secrets.c.name.in_(wanted))
    known = set(conn.execute(query).scalars())
    return [name for name in wanted if name not in known]


def remove(conn: Connection, tenant: str, name: str) -> bool:
    """True if there was such a secret."""
    return bool(conn.execute(delete(secrets).where(secrets.c.tenant == tenant, secrets.c.name == name)).rowcount)
