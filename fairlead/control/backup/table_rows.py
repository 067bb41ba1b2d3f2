"""Dumps and loads the store as database-independent rows: read in one snapshot, written in one transaction."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from sqlalchemy import Connection, LargeBinary, MetaData, Table, func, insert, inspect, select, text
from sqlalchemy.types import TypeEngine

from fairlead.control.backup import archive
from fairlead.control.store.migrate import HEAD, schema_version, upgrade
from fairlead.errors import Refused

SKIPPED_TABLES = frozenset({"alembic_version", "leadership", "sessions"})
"""A restored platform elects its leader anew, and web users log in again."""

_BATCH = 1000


def tables(connection: Connection) -> list[Table]:
    """Every table of the backup in dependency order, reflected from the database whatever its version."""
    found = MetaData()
    found.reflect(connection)
    return [table for table in found.sorted_tables if table.name not in SKIPPED_TABLES]


def store_facts(connection: Connection) -> dict[str, Any]:
    """What a restore must know before the rows: schema version, epoch, and the last id of each table."""
    schema = schema_version(connection)
    if schema is None:
        raise Refused("the store is empty", fix="start the platform once: fairlead up")
    if schema > HEAD:
        raise Refused(f"the store has schema version {schema}, which is newer than the {HEAD} of this Fairlead",
                      field="store", fix="upgrade Fairlead")  # fmt: skip
    epoch = connection.execute(text("SELECT epoch FROM leadership")).scalar_one()
    return {"schema": schema, "epoch": int(epoch), "sequences": dict(_sequences(connection))}


def _sequences(connection: Connection) -> Iterator[tuple[str, int]]:
    """The last id given out per table, including deleted rows: ids must never be reused."""
    for table in tables(connection):
        if "id" not in table.c or not issubclass(table.c.id.type.python_type, int):
            continue
        if connection.dialect.name == "sqlite":
            query = text("SELECT seq FROM sqlite_sequence WHERE name = :name")
            last = connection.execute(query, {"name": table.name}).scalar()
        else:
            name = connection.execute(select(func.pg_get_serial_sequence(table.name, "id"))).scalar()
            query = text(f"SELECT CASE WHEN is_called THEN last_value END FROM {name}")  # the database's own name
            last = connection.execute(query).scalar() if name else None
        if last is not None:
            yield table.name, int(last)


def dump(connection: Connection, table: Table, out: IO[bytes]) -> int:
    """Write a table's rows as one JSON array per line, after a line of column names. Returns the number of rows."""
    encoders = [_encoder(column.type) for column in table.columns]
    out.write(_line([column.name for column in table.columns]))
    rows = connection.execution_options(yield_per=_BATCH).execute(select(table).order_by(*table.primary_key.columns))
    count = 0
    for row in rows:
        out.write(_line([encode(value) for encode, value in zip(encoders, row, strict=True)]))
        count += 1
    return count


def load(connection: Connection, table: Table, lines: Iterable[bytes]) -> int:
    """Insert the rows that :func:`dump` wrote. Returns their number."""
    rows = (archive.load_json(line, f"the store's {table.name}") for line in lines)
    names = next(rows)
    decoders = [_decoder(table.c[name].type) for name in names]
    count, batch = 0, []
    for row in rows:
        batch.append({n: decode(v) for n, decode, v in zip(names, decoders, row, strict=True)})
        if len(batch) == _BATCH:
            connection.execute(insert(table), batch)
            count, batch = count + len(batch), []
    if batch:
        connection.execute(insert(table), batch)
    return count + len(batch)


def create_schema(connection: Connection, schema: str) -> None:
    """Create the schema of the backup in an empty database; refuses a database with rows."""
    for name in inspect(connection).get_table_names():
        if name == "alembic_version" or name == "leadership":
            continue
        if connection.execute(text(f'SELECT 1 FROM "{name}" LIMIT 1')).first() is not None:
            raise Refused("the database is not empty", field="--store", fix="name an empty database")
    found = schema_version(connection)
    if found not in (None, schema):
        raise Refused(f"the database has tables of schema {found} already", field="--store",
                      fix="name a database without tables")  # fmt: skip
    if found is None:
        upgrade(connection, None, schema)


def finish_load(connection: Connection, schema: str, sequences: dict[str, int], epoch: int) -> None:
    """Restore the id sequences, set a higher epoch without a leader, and migrate to this schema."""
    for name, last in sequences.items():
        if connection.dialect.name == "sqlite":
            connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :n"), {"n": name})
            connection.execute(text("INSERT INTO sqlite_sequence VALUES (:n, :s)"), {"n": name, "s": last})
        else:
            connection.execute(select(func.setval(func.pg_get_serial_sequence(name, "id"), last)))
    connection.execute(text("UPDATE leadership SET epoch = :epoch, holder = NULL, expires_s = 0"), {"epoch": epoch})
    if schema != HEAD:
        upgrade(connection, schema, HEAD)


def _line(values: list[Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"  # allows infinities, unlike strict JSON


def _encoder(kind: TypeEngine[Any]) -> Callable[[Any], Any]:
    if isinstance(kind, LargeBinary):
        return lambda value: None if value is None else base64.b64encode(value).decode()
    return _same


def _decoder(kind: TypeEngine[Any]) -> Callable[[Any], Any]:
    if isinstance(kind, LargeBinary):
        return lambda value: None if value is None else base64.b64decode(value)
    return _same


def _same(value: Any) -> Any:
    return value
