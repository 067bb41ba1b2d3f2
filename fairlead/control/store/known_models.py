"""What is known of models: their profiles, what measured steps taught about them, and the plans that failed."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, select
from sqlalchemy import update as update_rows

from fairlead.control.records import KnownModel
from fairlead.control.store.row_mapping import column_values, fields, insert_into
from fairlead.control.store.schema import models

MOST = 500
"""Of one tenant; the oldest go first, and are looked at again if they come back."""

_MODEL = [models.c[name] for name in KnownModel.__slots__]


def put(conn: Connection, model: KnownModel) -> None:
    """Keep it; one that is known already stays as it is, with all that was learned about it.

    One that could not be looked at is replaced.
    """
    this = (models.c.tenant == model.tenant) & (models.c.key == model.key)
    conn.execute(delete(models).where(this, models.c.why_not != ""))
    statement = insert_into(conn.dialect.name, models).on_conflict_do_nothing()
    conn.execute(statement, fields(model))
    newest = select(models.c.key).where(models.c.tenant == model.tenant).order_by(models.c.created_s.desc()).limit(MOST)
    conn.execute(delete(models).where(models.c.tenant == model.tenant, models.c.key.not_in(newest)))


def get(conn: Connection, tenant: str, key: str) -> KnownModel | None:
    row = conn.execute(select(*_MODEL).where(models.c.tenant == tenant, models.c.key == key)).one_or_none()
    return None if row is None else KnownModel(*row)


def update(conn: Connection, tenant: str, key: str, **changes: Any) -> KnownModel | None:
    """The model as it is after these fields were changed; None if it is not known any more."""
    this = (models.c.tenant == tenant) & (models.c.key == key)
    conn.execute(update_rows(models).where(this).values(column_values(changes)))
    return get(conn, tenant, key)


def keys(conn: Connection) -> set[tuple[str, str]]:
    """Tenant and key of all."""
    return {(tenant, key) for tenant, key in conn.execute(select(models.c.tenant, models.c.key))}
