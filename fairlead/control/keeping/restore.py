"""Brings a platform back from a backup: unpacked and checked beside the home, which then appears whole or not."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from fairlead.backends.local.folders import TENANT_FOLDERS
from fairlead.control.keeping import archive, holes, rows
from fairlead.control.keeping.settle import Settled, settle
from fairlead.control.keeping.take import Progress
from fairlead.control.orders import tenant_uid
from fairlead.control.store import jobs, tenants
from fairlead.control.store.connections import connect, shown
from fairlead.control.store.migrate import HEAD
from fairlead.errors import FairleadError, Refused
from fairlead.home import Home

_ROOMS = ("jobs/", "bundles/", "store/", "tls/")
_FILES = ("state.json", "secret.key", "profile.json", "run/nodes.json")
_STORE = ".store"


@dataclass(frozen=True, slots=True)
class Restored:
    """What came back, to be told."""

    home: str
    taken_s: float
    version: str
    rows: int
    files: int
    going_on: int
    secrets_without_key: int
    admin_token: bool  # whether it came along


def restore(path: Path, home: Home, *, store: str | None = None, progress: Progress = lambda *_: None) -> Restored:
    """The home as it was when the backup was taken, in an empty place; jobs go on at the next start."""
    _refuse_full(home)
    stage = home.root.with_name(f".{home.root.name}.restoring-{os.getpid()}")
    try:
        _make_stage(stage)
        header, files = _unpack(path, stage, progress)
        progress(0, 0, "store")
        state = json.loads((stage / "state.json").read_bytes())
        settled, owners = _fill(store or f"sqlite:///{stage / 'fairlead.db'}", stage, state, header, home)
        progress(0, 0, "files")
        _own(stage, owners)
        token = _finish(stage, store)
        _appear(stage, home)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    counts: dict[str, int] = state["rows"]
    return Restored(
        home=str(home.root), taken_s=header["taken_s"], version=header["version"], rows=sum(counts.values()),
        files=files, going_on=settled.going_on, admin_token=token,
        secrets_without_key=0 if home.secret_key.exists() else counts.get("secrets", 0),
    )  # fmt: skip


def _refuse_full(home: Home) -> None:
    if home.root.is_symlink() or (home.root.exists() and (not home.root.is_dir() or any(home.root.iterdir()))):
        raise Refused(f"{home.root} is not empty", field="--home", value=str(home.root),
                      fix="name a folder that does not exist yet, or an empty one")  # fmt: skip


def _make_stage(stage: Path) -> None:
    try:
        stage.mkdir(mode=0o700, parents=True)
        Home(stage).create()
    except OSError as error:
        raise Refused(f"{stage.parent} cannot be written: {error.strerror}", field="--home",
                      fix="name a place that can be") from None  # fmt: skip


# ---------------------------------------------------------------- unpacking


def _unpack(path: Path, stage: Path, progress: Progress) -> tuple[dict[str, Any], int]:
    """Everything into the stage, checked against the checksums; links last, so that nothing is written through one."""
    size, read = 0, 0
    links: list[tuple[Path, str]] = []
    count = 0

    def moved(more: int) -> None:
        nonlocal read
        read += more
        progress(read, max(read, size), "unpacking")

    with archive.read(path, moved) as reader:
        _refuse_newer(reader.header)
        size = int(reader.header.get("bytes", 0))
        for member, pour in reader.members():
            if not member.name.startswith(_ROOMS) and member.name not in _FILES:
                raise archive.damaged(f"{member.name!r} does not belong into a backup")
            within = member.name.replace("store/", f"{_STORE}/", 1) if member.name.startswith("store/") else member.name
            place = stage / within
            place.parent.mkdir(parents=True, exist_ok=True)
            if member.issym():
                links.append((place, member.linkname))
            else:
                _write(place, pour, member)
            count += member.name.startswith(("jobs/", "bundles/"))
    for place, target in links:
        place.symlink_to(target)
    return reader.header, count


def _refuse_newer(header: dict[str, Any]) -> None:
    if str(header["schema"]) > HEAD:
        raise Refused(
            f"the backup is of Fairlead {header['version']} with schema {header['schema']}, newer than the {HEAD} here",
            field="FILE", fix=f"restore it with Fairlead {header['version']} or newer",
        )  # fmt: skip


def _write(place: Path, pour: Callable[[Callable[[bytes], object]], None], member: tarfile.TarInfo) -> None:
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    parts = member.pax_headers.get(holes.HEADER)
    with os.fdopen(descriptor, "wb") as file:
        try:
            pour(file.write if parts is None else holes.Sink(file, parts).write)
        except ValueError as error:
            raise archive.damaged(f"{member.name}: {error}") from error
        os.fchmod(descriptor, member.mode & 0o777)
        file.flush()
        os.utime(descriptor, (member.mtime, member.mtime))


# ---------------------------------------------------------------- the store


def _fill(
    url: str, stage: Path, state: dict[str, Any], header: dict[str, Any], home: Home
) -> tuple[Settled, dict[str, int]]:
    """All rows in one transaction, and what they mean now. Returns whose job is whose, too."""
    engines = connect(url)
    try:
        with engines.writer.begin() as connection:
            rows.prepare(connection, state["schema"])
            for table in rows.tables(connection):
                lines = stage / _STORE / f"{table.name}.jsonl"
                if lines.exists():
                    with lines.open("rb") as file:
                        rows.load(connection, table, file)
            # Seconds of today are more than the old platform ever counted to, and less than the next restore will.
            rows.finish(connection, state["schema"], state["sequences"], max(int(state["epoch"]), int(time.time())) + 1)
            settled = settle(connection, header["taken_s"], time.time())
            return settled, _owners(connection, home)
    except DBAPIError as error:
        told = shown(error)
        if isinstance(told, FairleadError):
            raise told from error
        raise Refused(
            f"the store does not take the rows: {error.orig}", field="--store", fix="name an empty one"
        ) from error
    finally:
        engines.dispose()


def _owners(connection: Connection, home: Home) -> dict[str, int]:
    """The user that each job works as in its new home."""
    numbers = {tenant.name: tenant.number for tenant in tenants.all(connection)}
    found: dict[str, int] = {}
    cursor: str | None = None
    while True:
        some, cursor, _ = jobs.page(connection, limit=1000, before=cursor)
        found |= {job.id: tenant_uid(home, numbers[job.tenant]) for job in some}
        if cursor is None:
            return found


# ---------------------------------------------------------------- the files


def _own(stage: Path, owners: dict[str, int]) -> None:
    """Give each tenant's files to its user here, which is another one than where they came from."""
    for folder in (stage / "jobs").iterdir():
        folder.chmod(0o711)
        for part in folder.iterdir():
            part.chmod(0o700)
            uid = owners.get(folder.name)
            if part.name in TENANT_FOLDERS and uid is not None and os.geteuid() == 0:
                _give(part, uid)


def _give(folder: Path, uid: int) -> None:
    for place, folders, names, folder_fd in os.fwalk(folder, follow_symlinks=False):
        os.chown(place, uid, uid)
        for name in (*folders, *names):
            os.chown(name, uid, uid, dir_fd=folder_fd, follow_symlinks=False)


def _finish(stage: Path, store: str | None) -> bool:
    """Clear away what was only needed here, and leave a profile for the first start. Says whether a token came."""
    shutil.rmtree(stage / _STORE, ignore_errors=True)
    (stage / "state.json").unlink()
    kept = stage / "profile.json"
    profile = json.loads(kept.read_bytes()) if kept.exists() else {}
    if store is not None:
        profile["store"] = store
    if profile:
        kept.touch(0o600)
        kept.write_text(json.dumps(profile))
    if (stage / "tls").exists():
        (stage / "tls").chmod(0o700)
    return "token" in profile


def _appear(stage: Path, home: Home) -> None:
    """In one step: a folder may take the place of an empty one."""
    try:
        if home.root.exists():
            stage.chmod(home.root.stat().st_mode & 0o777 | 0o111)
        archive.sync_disk(stage)
        stage.rename(home.root)
        archive.sync_folder(home.root.parent)
    except OSError as error:
        raise Refused(f"{home.root} cannot be put in place: {error.strerror}", field="--home", value=str(home.root),
                      fix="name a folder that does not exist yet and is no mount point") from error  # fmt: skip
