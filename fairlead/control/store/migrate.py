"""Brings the schema of a database to the version that this code knows, safely when two open it at once."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import OperationalError

from fairlead.control.store.connections import Engines, unavailable
from fairlead.errors import Unavailable

HEAD = "0013"
"""The newest file in migrations/versions. Named here so that Alembic is imported only when there is work for it."""

_LOCK = 0x0FA1_41EAD  # any number, the same for all who migrate
_MIGRATIONS = Path(__file__).parent.parent / "migrations"


def migrate(engines: Engines) -> None:
    """Upgrade to :data:`HEAD` if need be; a store written by a newer Fairlead is left alone and refused."""
    try:
        # Looking needs no lock: a leader that was stopped within a write keeps nobody from standing by.
        with engines.reader.connect() as connection:
            if version_of(connection) == HEAD:
                return
        with engines.writer.begin() as connection:  # holds SQLite's write lock
            if connection.dialect.name == "postgresql":
                connection.execute(text("SET LOCAL lock_timeout = '60s'"))
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            version = version_of(connection)  # another may have migrated while this one waited
            if version != HEAD:
                upgrade(connection, version)
    except OperationalError as error:
        raise unavailable(error) from error


def version_of(connection: Connection) -> str | None:
    """The version of the schema that is there; None: none."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def upgrade(connection: Connection, version: str | None, to: str = HEAD) -> None:
    """Take the schema from one version (None: nothing is there) to another, within the transaction that is open."""
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None and version not in known:
        raise Unavailable(
            f"the store has schema version {version}, which is newer than the {HEAD} of this Fairlead",
            field="store", fix="upgrade Fairlead, or open another store",
        )  # fmt: skip
    command.upgrade(config, to)
