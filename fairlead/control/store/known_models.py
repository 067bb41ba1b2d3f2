"""Stores what is known of models: profiles, corrections from measured steps, and plans that failed."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, select
from sqlalchemy import update as update_rows

from fairlead.control.records import KnownModel
from fairlead.control.store.row_mapping import column_values, insert_into, row_of
from fairlead.control.store.schema import models

MAX_MODELS = 500
"""Models per tenant; the oldest are dropped first and profiled again when they return."""

_MODEL = [models.c[name] for name in KnownModel.__slots__]


def put(conn: Connection, model: KnownModel) -> None:
    """Store a model. A known model keeps what was learned about it; a failed profile is replaced."""
    this = (models.c.tenant == model.tenant) & (models.c.key == model.key)
    conn.execute(delete(models).where(this, models.c.why_not != ""))
    statement = insert_into(conn.dialect.name, models).on_conflict_do_nothing()
    conn.execute(statement, row_of(model))
    newest = (
        select(models.c.key)
        .where(models.c.tenant == model.tenant)
        .order_by(models.c.created_s.desc())
        .limit(MAX_MODELS)
    )
    conn.execute(delete(models).where(models.c.tenant == model.tenant, models.c.key.not_in(newest)))


def get(conn: Connection, tenant: str, key: str) -> KnownModel | None:
    row = conn.execute(select(*_MODEL).where(models.c.tenant == tenant, models.c.key == key)).one_or_none()
    return None if row is None else KnownModel(*row)


def update(conn: Connection, tenant: str, key: str, **changes: Any) -> KnownModel | None:
    """Change fields and return the model; None if it is not stored any more."""
    this = (models.c.tenant == tenant) & (models.c.key == key)
    conn.execute(update_rows(models).where(this).values(column_values(changes)))
    return get(conn, tenant, key)


def keys(conn: Connection) -> set[tuple[str, str]]:
    """Tenant and key of every model."""
    return {(tenant, key) for tenant, key in conn.execute(select(models.c.tenant, models.c.key))}
