"""A look at a store from outside, which changes nothing: its schema, and who leads. For those who check on it."""

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
    """What was seen; ``known`` is the schema that this Fairlead works with."""

    schema: str
    known: str
    epoch: int
    holder: str | None
    expires_s: float
    secrets: int = 0


def glimpse(url: str) -> StoreInspection:
    """What the store holds now; :class:`Unavailable` when it cannot be read."""
    engines = connect(url)
    try:
        with engines.reader.connect() as connection:
            version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
            row = connection.execute(select(leadership.c.epoch, leadership.c.holder, leadership.c.expires_s)).first()
            older = not inspect(connection).has_table(secrets.name)
            kept = 0 if older else connection.execute(select(func.count()).select_from(secrets)).scalar_one()
    except SQLAlchemyError as error:
        said = " ".join(str(error.__cause__ or error).split())[:200]  # the driver's words: SQLAlchemy's name the URL
        raise Unavailable(f"cannot be read: {said}", fix="start the database, or restore a backup") from None
    finally:
        engines.dispose()
    epoch, holder, expires_s = (0, None, 0.0) if row is None else row
    return StoreInspection(str(version), HEAD, int(epoch), holder, float(expires_s), kept)
