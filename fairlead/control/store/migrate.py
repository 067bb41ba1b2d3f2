"""Migrates the schema of a database to this Fairlead's version, safely when two processes open it at once."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import OperationalError

from fairlead.control.store.connections import Engines, unavailable_error
from fairlead.errors import Unavailable

HEAD = "0013"
"""The newest file in migrations/versions; named here so that Alembic is imported only when it is needed."""

_LOCK = 0x0FA1_41EAD  # any number, the same in every process
_MIGRATIONS = Path(__file__).parent.parent / "migrations"


def migrate(engines: Engines) -> None:
    """Upgrade to :data:`HEAD` if needed. Refuses a store that a newer Fairlead wrote."""
    try:
        # Reading the version takes no lock: a leader that hangs within a write does not block a standby's start.
        with engines.reader.connect() as connection:
            if schema_version(connection) == HEAD:
                return
        with engines.writer.begin() as connection:  # holds SQLite's write lock
            if connection.dialect.name == "postgresql":
                connection.execute(text("SET LOCAL lock_timeout = '60s'"))
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            version = schema_version(connection)  # another process may have migrated meanwhile
            if version != HEAD:
                upgrade(connection, version)
    except OperationalError as error:
        raise unavailable_error(error) from error


def schema_version(connection: Connection) -> str | None:
    """The schema version of the database; None: it is empty."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def upgrade(connection: Connection, version: str | None, to: str = HEAD) -> None:
    """Migrate from one version (None: empty database) to another, within the open transaction."""
    if connection.dialect.name == "postgresql":
        # Importing Alembic on a busy machine, or restoring rows, takes longer than a leader's write may pause.
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = '60s'"))
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
