"""A real PostgreSQL server for tests, started and ended by them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from fairlead.control.store import Store
from fairlead.control.store.migrate import HEAD
from fairlead.control.store.schema import metadata

_ALONE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fairlead'"


class PostgresServer:
    """A server of our own: private port and folder, no access from other machines, gone with the tests."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._as_user: list[str] = []
        self.folder = folder
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(folder, "postgres", "postgres")
            self._as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--pdeathsig=INT"]
        data = folder / "data"
        initdb = [programs / "initdb", "-D", data, "-U", "fairlead", "-A", "trust", "-N", "-E", "UTF8"]
        subprocess.run([*self._as_user, *map(str, initdb)], check=True, capture_output=True, cwd=folder)
        self.port = _free_port()
        serve = [programs / "postgres", "-D", data, "-p", self.port, "-k", folder, "-h", "127.0.0.1", "-F"]
        self._serve = [*self._as_user, *map(str, serve)]
        self._log = (folder / "log").open("wb")
        self._schema_stands = False
        self.start()

    def start(self) -> None:
        """Start the server, or start it again."""
        self._process = subprocess.Popen(self._serve, stdout=self._log, stderr=self._log, cwd=self.folder)
        self._wait_until_it_answers()

    def start_if_stopped(self) -> None:
        """For a test that stopped it and did not come to start it again."""
        if self._process.poll() is not None:
            self.start()

    def stop(self) -> None:
        """End all sessions and then the server; :meth:`start` brings it back with what it holds."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)

    def empty_database(self) -> str:
        """The URL of the one database, emptied: making a database per test would take longer than the test."""
        self._schema_stands = False
        self.start_if_stopped()
        self.execute(_ALONE)
        self.execute("DROP SCHEMA public CASCADE")
        self.execute("CREATE SCHEMA public")
        return self.url

    def new_store(self) -> str:
        """The URL of the one database as a new store, with its schema: made once, and emptied of rows after that."""
        lives = self._process.poll() is None and self._schema_stands
        if not lives or self.execute("SELECT version_num FROM alembic_version") != [(HEAD,)]:
            asyncio.run(Store.open(self.empty_database()).close())
            self._schema_stands = True
            return self.url
        emptied = [f"DELETE FROM {name}" for name in metadata.tables if name != "leadership"]
        again = "UPDATE leadership SET epoch = 0, holder = NULL, expires_s = 0"
        numbers = "SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'"
        # A ledger that is only ever added to says no to this; as a replica it is not asked.
        self.execute("; ".join([_ALONE, "SET session_replication_role = replica", *emptied, again, numbers]))
        return self.url

    @property
    def url(self) -> str:
        return f"postgresql://fairlead@127.0.0.1:{self.port}/postgres"

    def execute(self, statement: str) -> list[Any]:
        import psycopg

        with psycopg.connect(self._address(), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self.stop()
        self._log.close()

    def _address(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=fairlead dbname=postgres"

    def _wait_until_it_answers(self) -> None:
        import psycopg

        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self._address()):
                return
            time.sleep(0.02)
        raise RuntimeError(f"PostgreSQL did not start: {(self.folder / 'log').read_text()[-2000:]}")


def installed() -> Path | None:
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    named = shutil.which("initdb")
    found = packaged[-1] if packaged else Path(named).resolve() if named else None
    return found.parent if found is not None and (found.parent / "postgres").exists() else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
