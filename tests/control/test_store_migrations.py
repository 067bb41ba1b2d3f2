"""Opening a store: an empty one gets the schema, one that has it is left alone, two at once do no harm."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect, text

from fairlead.control.records import (
    AuditEntry,
    DataSet,
    Generation,
    Job,
    KnownModel,
    Lineage,
    LoggedEvent,
    Tenant,
    Token,
    Usage,
)
from fairlead.control.store import Store, data_schema, migrate, schema, tenants
from fairlead.control.store.connections import connect
from fairlead.errors import InvalidSpec, Unavailable

from .stores import Opened, run


def test_an_empty_database_gets_every_table(empty_url: str) -> None:
    run(Store.open(empty_url).close())
    engines = connect(empty_url)
    with engines.reader.connect() as conn:
        assert set(inspect(conn).get_table_names()) == {*schema.metadata.tables, "alembic_version"}
    engines.dispose()


def test_the_migrations_make_exactly_the_schema_the_code_expects(empty_url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    run(Store.open(empty_url).close())
    engines = connect(empty_url)
    with engines.writer.connect() as conn:
        context = MigrationContext.configure(conn, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
    engines.dispose()


def test_a_migration_may_pause_longer_than_a_write_of_the_leader(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alembic is imported within the transaction: on a busy machine that alone takes longer than five seconds."""
    limits: list[str] = []

    def upgrade(connection: Connection, version: str | None, to: str = migrate.HEAD) -> None:
        really(connection, version, to)
        if connection.dialect.name == "postgresql":
            limits.append(connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one())

    really = migrate.upgrade
    monkeypatch.setattr(migrate, "upgrade", upgrade)
    run(Store.open(empty_url).close())
    assert limits == (["1min"] if empty_url.startswith("postgresql") else [])


def test_the_newest_version_is_the_one_the_code_names() -> None:
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(Path(migrate.__file__).parent.parent / "migrations"))
    assert scripts.get_current_head() == migrate.HEAD


@pytest.mark.parametrize(
    ("record", "table"),
    [
        (Job, schema.jobs), (Generation, schema.generations), (Tenant, schema.tenants), (Token, schema.tokens),
        (LoggedEvent, schema.events), (AuditEntry, schema.audit), (KnownModel, schema.models),
        (DataSet, data_schema.datasets), (Lineage, data_schema.lineage),
    ],
)  # fmt: skip
def test_every_field_of_a_record_has_its_column(record: type, table: object) -> None:
    assert [column.name for column in table.c] == [field.name for field in fields(record)]  # type: ignore[attr-defined]


def test_a_line_of_the_ledger_has_a_column_per_field() -> None:
    assert {field.name for field in fields(Usage)} == {column.name for column in schema.usage.c} - {"id"}


def test_a_store_that_is_opened_again_keeps_its_rows(db: Opened, unopened: Callable[[], Store]) -> None:
    again = Opened(unopened())
    assert [tenant.name for tenant in again.read(tenants.all_tenants)] == ["vision", "text"]


def test_many_may_open_an_empty_store_at_once(empty_url: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        stores = list(pool.map(lambda _: Store.open(empty_url), range(6)))
    assert [run(store.read(tenants.all_tenants)) for store in stores] == [[]] * 6
    for store in stores:
        run(store.close())


def test_a_store_of_a_newer_fairlead_is_refused(db: Opened, url: str) -> None:
    db.sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(Unavailable, match="newer") as refused:
        Store.open(url)
    assert "upgrade" in str(refused.value.fix)


def test_the_sqlite_file_is_closed_to_other_users(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/deep/er/fairlead.db")
    files = list((tmp_path / "deep" / "er").iterdir())
    assert len(files) >= 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    run(store.close())


def test_sqlite_writes_ahead_and_syncs_every_commit(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/fairlead.db")
    pragmas = ("journal_mode", "synchronous", "foreign_keys")
    found = [run(store.read(lambda c, p=p: c.exec_driver_sql(f"PRAGMA {p}").scalar())) for p in pragmas]
    assert found == ["wal", 2, 1]
    run(store.close())


@pytest.mark.parametrize(
    "address", ["", "nonsense", "mysql://x/y", "sqlite://", "sqlite:///:memory:", "sqlite+aiosqlite:///x"]
)
def test_what_is_not_a_store_is_refused_with_a_fix(address: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        Store.open(address)
    assert "sqlite:///" in str(refused.value.fix)


def test_a_server_that_is_not_there_is_named_in_one_line() -> None:
    with pytest.raises(Unavailable, match="does not answer") as refused:
        Store.open("postgres://nobody@127.0.0.1:1/none")
    assert "\n" not in str(refused.value)


def test_opening_a_current_store_does_not_import_alembic(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/fairlead.db"
    run(Store.open(address).close())
    code = f"import sys, fairlead.control.store as s; s.Store.open({address!r}); print('alembic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_numbers_are_given_out_once_where_the_schema_says_so(db: Opened) -> None:
    """A follower's place, too: SQLite gives the number of the last row again, once that row is gone."""
    made = db.read(lambda conn: conn.dialect.name == "sqlite" and dict(
        conn.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'table'").all()
    ))  # fmt: skip
    for table in schema.metadata.tables.values() if made else ():
        wanted = bool(table.dialect_kwargs.get("sqlite_autoincrement"))
        assert ("AUTOINCREMENT" in made[table.name]) is wanted, table.name
