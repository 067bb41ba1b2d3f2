"""Stores to test against: a SQLite file, and a database of a real PostgreSQL server on a private port."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from fairlead.control.retention.pruner import Pruner
from fairlead.control.store import Store, tenants
from fairlead.home import Home
from fairlead.specs import TenantSpec

from .postgres import PostgresServer, installed
from .stores import Clock, Opened, run
from .verbs import Asked


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new store. It has its schema already: making that takes longer than most tests."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("new_sqlite"), tmp_path / "fairlead.db")
        return f"sqlite:///{tmp_path}/fairlead.db"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.new_store()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database in which there is nothing."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/fairlead.db"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.empty_database()


@pytest.fixture(scope="session")
def new_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("new") / "fairlead.db"
    run(Store.open(f"sqlite:///{file}").close())
    return file


@pytest.fixture
def unopened(url: str, clock: Clock) -> Iterator[Callable[[], Store]]:
    """Opens the store anew, as often as wanted; all are closed in the end."""
    opened: list[Store] = []

    def open_another() -> Store:
        opened.append(Store.open(url, clock=clock))
        return opened[-1]

    yield open_another
    for store in opened:
        run(store.close())


@pytest.fixture
def asked(new_sqlite: Path, clock: Clock, tmp_path: Path) -> Iterator[Asked]:
    """All verbs of a platform over a store of its own, with the tenants vision and text."""
    shutil.copy(new_sqlite, tmp_path / "fairlead.db")
    store = Store.open(f"sqlite:///{tmp_path}/fairlead.db", clock=clock)
    run(store.acquire_lease("test", 1e9))
    db = Opened(store)
    for name in ("vision", "text"):
        db.write(tenants.insert, TenantSpec(name=name))
    yield Asked(db, clock, tmp_path / "home")
    run(store.close())


@pytest.fixture
def db(unopened: Callable[[], Store]) -> Opened:
    """A store that leads, with the tenants vision and text."""
    store = unopened()
    run(store.acquire_lease("test", 1e9))
    opened = Opened(store)

    def both(conn: Connection) -> None:
        for name in ("vision", "text"):
            tenants.insert(conn, TenantSpec(name=name))

    opened.write(both)
    return opened


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create()
    return home


@pytest.fixture
def pruner(db: Opened, home: Home, clock: Clock) -> Pruner:
    return Pruner(db.store, home, clock)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    programs = installed()
    if programs is None:
        missing = "there is no PostgreSQL server here: install the Debian package postgresql"
        if os.environ.get("FAIRLEAD_REQUIRE_ALL") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    folder = Path(tempfile.mkdtemp(prefix="fairlead-pg-"))  # not pytest's: the server's user must get in
    try:
        server = PostgresServer(programs, folder)
        try:
            yield server
        finally:
            server.close()
    finally:
        shutil.rmtree(folder)
