"""Inspects a store from outside without changing it: schema version, leader, number of secrets.

For ``fairlead doctor``.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, inspect, select, text
from sqlalchemy.exc import SQLAlchemyError

from fairlead.control.store.connections import connect
from fairlead.control.store.migrate import HEAD
from fairlead.control.store.schema import leadership, secrets
from fairlead.errors import Unavailable


@dataclass(frozen=True, slots=True)
class StoreInspection:
    """The findings; ``supported`` is the schema version of this Fairlead."""

    schema: str
    supported: str
    epoch: int
    holder: str | None
    expires_s: float
    secret_count: int = 0


def inspect_store(url: str) -> StoreInspection:
    """Look into the store; raises :class:`Unavailable` when it cannot be read."""
    engines = connect(url)
    try:
        with engines.reader.connect() as connection:
            version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
            row = connection.execute(select(leadership.c.epoch, leadership.c.holder, leadership.c.expires_s)).first()
            predates_secrets = not inspect(connection).has_table(secrets.name)
            secret_rows = select(func.count()).select_from(secrets)
            count = 0 if predates_secrets else connection.execute(secret_rows).scalar_one()
    except SQLAlchemyError as error:
        reason = " ".join(str(error.__cause__ or error).split())[:200]  # the driver's message: SQLAlchemy's has the URL
        raise Unavailable(f"cannot be read: {reason}", fix="start the database, or restore a backup") from None
    finally:
        engines.dispose()
    epoch, holder, expires_s = (0, None, 0.0) if row is None else row
    return StoreInspection(str(version), HEAD, int(epoch), holder, float(expires_s), count)
