"""Restores a platform from a backup.

Unpacks and checks beside the home, then renames, so the home appears whole or not.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from alembic.util.exc import CommandError
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from fairlead.agent.node.job_folders import TENANT_FOLDERS
from fairlead.control.backup import archive, sparse_files
from fairlead.control.backup import table_rows as rows
from fairlead.control.backup.create import Progress
from fairlead.control.backup.requeued_jobs import RequeuedJobs, requeue_jobs
from fairlead.control.backup.safe_tree import Tree, change_owner, names_in, open_folder
from fairlead.control.identity import tokens
from fairlead.control.reconcile.worker_specs import tenant_uid
from fairlead.control.store import jobs, tenants
from fairlead.control.store.connections import connect, store_error
from fairlead.control.store.migrate import HEAD
from fairlead.errors import FairleadError, Refused, Unauthenticated
from fairlead.home import Home

_FILES = re.compile(  # every allowed path; a job's files are in one of these folders
    r"jobs/[^/]+/(output|snapshots|logs)/.+|bundles/[^/]+/.+|store/[a-z_]+\.jsonl"
    r"|tls/(key|certificate)\.pem|state\.json|secret\.key|profile\.json|run/nodes\.json",
    re.DOTALL,
)
_LINKS = re.compile(r"jobs/[^/]+/(output|snapshots)/.+", re.DOTALL)  # only tenants make links
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # folder names taken from the store
_STORE = ".store"
_FURTHEST_S = 1e11  # about 3,000 years, the limit of file systems


@dataclass(frozen=True, slots=True)
class RestoreSummary:
    """What was restored, for the user."""

    home: str
    taken_s: float
    version: str
    rows: int
    files: int
    going_on: int
    secrets_without_key: int
    admin_token: bool  # whether the backup held it
    left_out: int = 0  # folders of jobs unknown to the store


def restore(
    path: Path, home: Home, *, store: str | None = None, progress: Progress = lambda *_: None
) -> RestoreSummary:
    """Restore the home into an empty place; its jobs go on at the next start."""
    _require_empty(home)
    stage = home.root.with_name(f".{home.root.name}.restoring-{os.getpid()}")
    try:
        _make_stage(stage)
        header, files = _unpack(path, stage, progress)
        progress(0, 0, "store")
        state = _read_state(stage, header)
        settled, owners = _load_store(store or f"sqlite:///{stage / 'fairlead.db'}", stage, state, header, home)
        progress(0, 0, "files")
        left_out = _assign_owners(stage, owners)
        token = _clean_stage(stage, store)
        _move_into_place(stage, home)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    counts: dict[str, int] = state["rows"]
    return RestoreSummary(
        home=str(home.root), taken_s=header["taken_s"], version=header["version"], rows=sum(counts.values()),
        files=files, going_on=settled.going_on, admin_token=token, left_out=left_out,
        secrets_without_key=0 if home.secret_key.exists() else counts.get("secrets", 0),
    )  # fmt: skip


def _require_empty(home: Home) -> None:
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
    """Unpack everything into the stage and verify checksums; never writes or opens through a link."""
    size, read, count = 0, 0, 0

    def moved(more: int) -> None:
        nonlocal read
        read += more
        progress(read, max(read, size), "unpacking")

    with archive.read(path, moved) as reader, Tree(stage) as tree:
        _refuse_newer(reader.header)
        size = int(reader.header.get("bytes", 0))
        for member, pour in reader.members():
            if not (_LINKS if member.issym() else _FILES).fullmatch(member.name):
                raise archive.damaged_backup(f"{member.name!r} does not belong into a backup")
            place = PurePosixPath(f".{member.name}" if member.name.startswith("store/") else member.name)
            if member.issym():
                tree.link(place, member.linkname)
            else:
                _write(tree.file(place), pour, member)
            count += member.name.startswith(("jobs/", "bundles/"))
    return reader.header, count


def _read_state(stage: Path, header: dict[str, Any]) -> dict[str, Any]:
    """The facts stored with the rows, fully checked."""
    place = stage / "state.json"
    state = archive.load_json(place.read_bytes(), "its state.json") if place.exists() else None
    if not isinstance(state, dict) or not all(_are_counts(state.get(name)) for name in ("rows", "sequences")):
        raise archive.damaged_backup("its state.json is missing or invalid")
    if state.get("schema") != header["schema"]:
        raise archive.damaged_backup("its state.json is of another schema")
    return state


def _are_counts(named: Any) -> bool:
    """True if this maps names to whole numbers that a database can hold."""
    return isinstance(named, dict) and all(isinstance(each, int) and 0 <= each < 1 << 62 for each in named.values())


def _refuse_newer(header: dict[str, Any]) -> None:
    if str(header["schema"]) > HEAD:
        raise Refused(
            f"the backup is of Fairlead {header['version']} with schema {header['schema']}, newer than the {HEAD} here",
            field="FILE", fix=f"restore it with Fairlead {header['version']} or newer",
        )  # fmt: skip


def _write(descriptor: int, pour: Callable[[Callable[[bytes], object]], None], member: tarfile.TarInfo) -> None:
    parts = member.pax_headers.get(sparse_files.HEADER)
    member.mtime = member.mtime if abs(member.mtime) < _FURTHEST_S else 0  # a tenant may have set any
    with os.fdopen(descriptor, "wb") as file:
        try:
            pour(file.write if parts is None else sparse_files.SparseWriter(file, parts).write)
        except ValueError as error:
            raise archive.damaged_backup(f"{member.name}: {error}") from error
        os.fchmod(descriptor, member.mode & 0o777)
        file.flush()
        os.utime(descriptor, (member.mtime, member.mtime))


# ---------------------------------------------------------------- the store


def _load_store(
    url: str, stage: Path, state: dict[str, Any], header: dict[str, Any], home: Home
) -> tuple[RequeuedJobs, dict[str, int]]:
    """Load all rows and requeue jobs in one transaction; returns the requeued jobs and each job's user id."""
    engines = connect(url)
    try:
        with engines.writer.begin() as connection:
            rows.create_schema(connection, state["schema"])
            for table in rows.tables(connection):
                lines = stage / _STORE / f"{table.name}.jsonl"
                if lines.exists():
                    with lines.open("rb") as file:
                        rows.load(connection, table, file)
            # The time in seconds exceeds any epoch of the old platform, and the next restore's will exceed this one.
            rows.finish_load(
                connection, state["schema"], state["sequences"], max(int(state["epoch"]), int(time.time())) + 1
            )
            settled = requeue_jobs(connection, header["taken_s"], time.time())
            return settled, _owners(connection, home)
    # invalid rows or columns
    except (CommandError, KeyError, OverflowError, StopIteration, TypeError, ValueError) as error:
        raise archive.damaged_backup(f"its store is invalid: {error!r}") from error
    except DBAPIError as error:
        failure = store_error(error)
        if isinstance(failure, FairleadError):
            raise failure from error
        raise Refused(
            f"the store does not take the rows: {error.orig}", field="--store", fix="name an empty one"
        ) from error
    finally:
        engines.dispose()


def _owners(connection: Connection, home: Home) -> dict[str, int]:
    """By folder name: the user id as which each job's workers run in the new home."""
    numbers = {_folder_name(tenant.name): tenant.number for tenant in tenants.all_tenants(connection)}
    found: dict[str, int] = {}
    cursor: str | None = None
    while True:
        some, cursor, _ = jobs.page(connection, limit=1000, before=cursor)
        found |= {_folder_name(job.id): tenant_uid(home, numbers[job.tenant]) for job in some}
        if cursor is None:
            return found


def _folder_name(name: str) -> str:
    """The name of a job or tenant, if it is safe as a folder name: the platform creates and removes folders by it."""
    if _NAME.fullmatch(name) is None:
        raise archive.damaged_backup(f"its store holds {name!r}, which is not a valid name of a job or tenant")
    return name


# ---------------------------------------------------------------- the files


def _assign_owners(stage: Path, owners: dict[str, int]) -> int:
    """Give each tenant's files to its user on this machine.

    Returns how many folders were removed because the store does not know their job: submitted during the backup, or
    smuggled into it.
    """
    unknown = 0
    try:
        with open_folder(stage) as root, open_folder("jobs", root) as jobs_folder:
            for name in names_in(jobs_folder):
                if name in owners:
                    _assign_job_owner(name, jobs_folder, owners[name])
                else:
                    shutil.rmtree(name, dir_fd=jobs_folder)
                    unknown += 1
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise archive.damaged_backup(f"there is something else where {error.filename!r} should be a folder") from error
    return unknown


def _assign_job_owner(name: str, jobs_folder: int, uid: int) -> None:
    with open_folder(name, jobs_folder) as job:
        os.fchmod(job, 0o711)
        for part in names_in(job):
            with open_folder(part, job) as folder:
                os.fchmod(folder, 0o700)
                if part in TENANT_FOLDERS and os.geteuid() == 0:
                    change_owner(folder, uid)


def _clean_stage(stage: Path, store: str | None) -> bool:
    """Remove what only the restore needed and write a profile for the first start. True if the backup held a token."""
    shutil.rmtree(stage / _STORE, ignore_errors=True)
    (stage / "state.json").unlink()
    kept = stage / "profile.json"
    profile = {} if not kept.exists() else _token_profile(archive.load_json(kept.read_bytes(), "its profile"))
    kept.unlink(missing_ok=True)
    if store is not None:
        profile["store"] = store
    if profile:
        kept.touch(0o600)
        kept.write_text(json.dumps(profile))
    if (stage / "tls").exists():
        with open_folder(stage / "tls") as folder:
            os.fchmod(folder, 0o700)
    return "token" in profile


def _token_profile(profile: Any) -> dict[str, str]:
    """Only the token of the profile: the archive must not set a store, address or file of this machine."""
    if not isinstance(profile, dict):
        raise archive.damaged_backup("its profile is invalid")
    token = profile.get("token")
    if token is None:
        return {}
    try:
        name, secret = tokens.parse(str(token))
    except Unauthenticated:
        raise archive.damaged_backup("the token in its profile is invalid") from None
    return {"token": f"fl_{name}_{secret}"}


def _move_into_place(stage: Path, home: Home) -> None:
    """Rename the stage to the home in one step; it may replace an empty folder."""
    try:
        if home.root.exists():
            stage.chmod(home.root.stat().st_mode & 0o777 | 0o111)
        archive.sync_disk(stage)
        stage.rename(home.root)
        archive.sync_folder(home.root.parent)
    except OSError as error:
        raise Refused(f"{home.root} cannot be put in place: {error.strerror}", field="--home", value=str(home.root),
                      fix="name a folder that does not exist yet and is no mount point") from error  # fmt: skip
