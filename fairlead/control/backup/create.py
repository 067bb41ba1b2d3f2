"""Backs up a home while its platform runs or not: snapshots first, then the store, then the other files.

In this order no snapshot is newer than the store's record of its job, and every job that the store calls ended has
written all its files.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from fairlead import __version__
from fairlead.control.backup import archive
from fairlead.control.backup import home_files as files
from fairlead.control.backup import table_rows as rows
from fairlead.control.store.connections import connect, unavailable_error
from fairlead.control.store.migrate import schema_version
from fairlead.errors import Refused, Unavailable
from fairlead.home import Home

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in total, and the current step."""

_ACTIVE = text("SELECT id FROM jobs WHERE phase NOT IN ('succeeded', 'failed', 'cancelled')")
_SPOOL_BYTES = 8 << 20  # larger tables are spooled to disk


@dataclass(slots=True)
class BackupSummary:
    """What the backup holds, for the user."""

    path: str
    size_bytes: int = 0
    files: int = 0
    rows: int = 0
    jobs_going_on: int = 0
    schema: str = ""
    notes: list[str] = field(default_factory=list)


def backup(
    home: Home, path: Path, *, with_keys: bool = False, force: bool = False, progress: Progress = lambda *_: None
) -> BackupSummary:
    """Write a backup of the home and its store. Only reads, so a running platform is not disturbed."""
    url = _store_url(home)
    done, total, what = 0, 0, "reading"

    def moved(size: int) -> None:
        nonlocal done
        done += size
        progress(done, max(done, total), what)

    def begin(name: str) -> None:
        nonlocal what
        what = name
        moved(0)

    taken = BackupSummary(str(path))
    with archive.create(path, force=force, moved=moved) as writer, _snapshot_reader(url) as connect_once:
        active, header = connect_once(_active), connect_once(rows.store_facts)
        total = _expected_bytes(home, active)
        begin("snapshots")
        header |= {"format": archive.FORMAT, "version": __version__, "taken_s": time.time(), "home": str(home.root),
                   "keys": with_keys, "bytes": total}  # fmt: skip
        held = [*files.job_folders(home, active, files.SNAPSHOTS)]
        writer.add(archive.HEADER, json.dumps(header).encode())
        _copy_folders(writer, taken, held)
        begin("store")
        state: dict[str, Any] = connect_once(lambda connection: _copy_store(connection, writer, taken))
        begin("code, results and logs")
        _copy_folders(writer, taken, [("bundles", home.bundles), *files.job_folders(home, None, files.RESULTS)])
        _copy_settings(home, writer, taken, with_keys=with_keys, secrets=state.pop("secrets"))
        writer.add("state.json", json.dumps(state).encode())
    taken.jobs_going_on, taken.schema, taken.size_bytes = len(active), str(header["schema"]), path.stat().st_size
    return taken


def _store_url(home: Home) -> str:
    from fairlead.control.serve import read_profile

    if not home.profile.exists() and not home.database.exists():
        raise Unavailable(f"no platform was started under {home.root}", fix="name the platform's home with --home")
    url = read_profile(home).get("store") or f"sqlite:///{home.database}"
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        raise Unavailable(f"the store {url} does not exist", fix="check the home and its disk")
    return url


@contextmanager
def _snapshot_reader(url: str) -> Iterator[Callable[[Callable[[Connection], Any]], Any]]:
    """A function that runs each piece of work in a consistent snapshot of its own."""
    engines = connect(url)

    def once(work: Callable[[Connection], Any]) -> Any:
        try:
            with engines.reader.connect() as connection:
                return work(connection)
        except OperationalError as error:
            raise unavailable_error(error) from error

    try:
        yield once
    finally:
        engines.dispose()


def _active(connection: Connection) -> frozenset[str]:
    if schema_version(connection) is None:
        raise Refused("the store is empty", fix="start the platform once: fairlead up")
    return frozenset(connection.execute(_ACTIVE).scalars())


def _expected_bytes(home: Home, active: frozenset[str]) -> int:
    folders = [folder for _, folder in files.job_folders(home, active, files.SNAPSHOTS)]
    folders += [home.bundles, *(folder for _, folder in files.job_folders(home, None, files.RESULTS))]
    database = home.database.stat().st_size if home.database.exists() else 0
    return database + sum(files.measure(folder).size_bytes for folder in folders)


def _copy_folders(writer: archive.Writer, taken: BackupSummary, folders: list[tuple[str, Path]]) -> None:
    left_out = 0
    for name, folder in folders:
        copied = files.copy(writer, name, folder)
        taken.files += copied.files
        left_out += copied.left_out
    if left_out:
        what = "file or folder is" if left_out == 1 else "files or folders are"
        taken.notes.append(f"{left_out} {what} not in the backup: too deep or named too long to be restored")


def _copy_store(connection: Connection, writer: archive.Writer, taken: BackupSummary) -> dict[str, Any]:
    """Copy all rows from one snapshot of the store; returns the facts of the same moment."""
    facts = rows.store_facts(connection)
    counts: dict[str, int] = {}
    for table in rows.tables(connection):
        with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as spool:
            counts[table.name] = rows.dump(connection, table, spool)
            size = spool.tell()
            spool.seek(0)
            writer.copy(f"store/{table.name}.jsonl", spool, size)
    taken.rows = sum(counts.values())
    return facts | {"rows": counts, "secrets": counts.get("secrets", 0)}


def _copy_settings(home: Home, writer: archive.Writer, taken: BackupSummary, *, with_keys: bool, secrets: int) -> None:
    nodes = home.run / "nodes.json"
    if nodes.exists():
        writer.add("run/nodes.json", nodes.read_bytes())
    if with_keys:
        for name in ("secret.key", "tls/key.pem", "tls/certificate.pem"):
            if (home.root / name).exists():
                writer.add(name, (home.root / name).read_bytes())
        if home.profile.exists():
            token = json.loads(home.profile.read_bytes()).get("token")
            writer.add("profile.json", json.dumps({"token": token}).encode())
    if secrets and not (with_keys and home.secret_key.exists()):
        where = "was given from outside the home" if with_keys else "is not in the backup (--with-secrets-key)"
        taken.notes.append(f"the key of {secrets} secret{'s' if secrets > 1 else ''} {where}: "
                           "keep it, or they must be set again after a restore")  # fmt: skip
