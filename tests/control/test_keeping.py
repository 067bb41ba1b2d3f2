"""Backups: whole, checked, closed to others; and what comes back is what was there, in whichever database."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from sqlalchemy import text

from fairlead.control.backup import archive, table_rows
from fairlead.control.backup.create import backup
from fairlead.control.backup.restore import restore
from fairlead.control.reconcile.worker_specs import tenant_uid
from fairlead.control.records import GenerationPhase, JobPhase, LoggedEvent
from fairlead.control.store import Store, events, generations, jobs, migrate
from fairlead.control.store.connections import connect
from fairlead.errors import Conflict, Refused
from fairlead.home import Home

from .backups import content, platform_home, put, read
from .postgres import PostgresServer
from .stores import Opened, run

TAKEN = ("b.tar", "b.tar.gz", "b.tar.zst")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return platform_home(tmp_path / "home")


# ---------------------------------------------------------------- there and back


@pytest.mark.parametrize("name", TAKEN)
def test_what_was_backed_up_comes_back(home: Home, tmp_path: Path, name: str) -> None:
    taken = backup(home, tmp_path / name)
    back = restore(tmp_path / name, Home(tmp_path / "new"))
    before, after = content(f"sqlite:///{home.database}"), content(f"sqlite:///{tmp_path}/new/fairlead.db")
    for table in ("tenants", "submissions", "secrets", "bundles", "metrics", "usage_days"):
        assert after[table][: len(before[table])] == before[table], table
    assert (taken.rows, taken.jobs_going_on, taken.schema) == (back.rows, 4, migrate.HEAD)
    new = Home(tmp_path / "new")
    assert (new.bundles / "vision" / "abc.tar.gz").read_bytes() == b"code"
    assert (new.job("runs-1") / "snapshots" / "snapshot-40.pt").read_bytes() == b"state of step 40"
    assert (new.job("done-1") / "output" / "deep" / "model.safetensors").read_bytes() == bytes(300_000)
    assert (new.job("done-1") / "logs" / "w0.log").read_bytes() == b"hello\n"
    assert (new.run / "nodes.json").read_bytes() == (home.run / "nodes.json").read_bytes()
    left_out = (
        "jobs/done-1/snapshots",
        "jobs/runs-1/code",
        "jobs/runs-1/snapshots/.snapshot-41.pt.7.tmp",
        "state.json",
    )
    assert not [path for path in left_out if (new.root / path).exists()]


def test_a_backup_is_closed_to_others_and_replaces_nothing_unasked(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "b.tar.gz"
    backup(home, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    first = file.read_bytes()
    with pytest.raises(Conflict, match="there already") as caught:
        backup(home, file)
    assert "--force" in str(caught.value.fix) and file.read_bytes() == first
    assert backup(home, file, force=True).size_bytes == file.stat().st_size
    assert [path.name for path in tmp_path.glob("*b.tar.gz*")] == ["b.tar.gz"], "nothing is left beside it"


def test_a_backup_that_fails_leaves_the_former_one(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "b.tar"
    backup(home, file)
    first = file.read_bytes()

    def full(done: int, total: int, what: str) -> None:
        if what != "reading":
            raise OSError(28, "No space left on device")

    with pytest.raises(Refused, match="No space left"):
        backup(home, file, force=True, progress=full)
    assert file.read_bytes() == first
    assert [path.name for path in tmp_path.glob("*b.tar*")] == ["b.tar"]


def test_keys_and_tokens_go_along_only_when_asked(home: Home, tmp_path: Path) -> None:
    plain = backup(home, tmp_path / "plain.tar")
    opened = backup(home, tmp_path / "keys.tar", with_keys=True)
    assert "1 secret" in plain.notes[0] and not opened.notes
    for word in (b"the key", b"fl_a_b"):
        assert word not in (tmp_path / "plain.tar").read_bytes()
        assert word in (tmp_path / "keys.tar").read_bytes()
    without = restore(tmp_path / "plain.tar", Home(tmp_path / "without"))
    having = restore(tmp_path / "keys.tar", Home(tmp_path / "having"))
    assert (without.secrets_without_key, without.admin_token) == (1, False)
    assert (having.secrets_without_key, having.admin_token) == (0, True)
    key = tmp_path / "having" / "secret.key"
    assert key.read_text() == "the key\n" and stat.S_IMODE(key.stat().st_mode) == 0o600
    assert json.loads((tmp_path / "having" / "profile.json").read_text()) == {"token": "fl_a_b0123456789abcdef"}


# ---------------------------------------------------------------- what it means to come back


def test_jobs_that_ran_queue_again_and_nothing_of_the_old_platform_leads(home: Home, tmp_path: Path) -> None:
    backup(home, tmp_path / "b.tar")
    back = restore(tmp_path / "b.tar", Home(tmp_path / "new"))
    url = f"sqlite:///{tmp_path}/new/fairlead.db"
    phases = {job.id: job.phase for job in read(url, lambda conn: jobs.page(conn, limit=99)[0])}
    waiting = ("runs-1", "waits-1", "yields-1")
    assert {job: phases[job] for job in waiting} == dict.fromkeys(waiting, JobPhase.QUEUED)
    assert phases["ends-1"] is JobPhase.SUCCEEDED and back.going_on == 3
    (generation,) = read(url, generations.of_job, "runs-1")
    assert (generation.phase, generation.outcome) == (GenerationPhase.ENDED, "restored")
    old = read(f"sqlite:///{home.database}", table_rows.store_facts)["epoch"]
    assert read(url, table_rows.store_facts)["epoch"] > max(old, 1_600_000_000)
    new: list[LoggedEvent] = read(url, events.after, 0, 99)
    assert min(event.id for event in new if event.time_s > 5.0) == 3, "ids are not given twice, not even forgotten ones"
    store = Store.open(url)
    assert run(store.acquire_lease("next", 3.0)), "nobody else leads"
    run(store.close())


def test_a_restore_waits_for_the_disk_once_not_for_each_file(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        put(home.job("done-1") / "output" / f"file-{number}", b"x")
    backup(home, tmp_path / "b.tar")
    waits: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (waits.append(descriptor), fsync(descriptor))[1])
    synced: list[Path] = []
    sync_disk = archive.sync_disk
    monkeypatch.setattr(archive, "sync_disk", lambda folder: (synced.append(folder), sync_disk(folder))[1])
    restored = restore(tmp_path / "b.tar", Home(tmp_path / "new"))
    assert restored.files > 200 and len(waits) < 10
    assert len(synced) == 1 and synced[0] != tmp_path / "new", "before anything appears"


def test_a_second_restore_outranks_the_first(home: Home, tmp_path: Path) -> None:
    backup(home, tmp_path / "b.tar")
    restore(tmp_path / "b.tar", Home(tmp_path / "one"))
    store = Store.open(f"sqlite:///{tmp_path}/one/fairlead.db")
    first = run(store.acquire_lease("one", 3.0))
    run(store.close())
    backup(Home(tmp_path / "one"), tmp_path / "c.tar")
    restore(tmp_path / "c.tar", Home(tmp_path / "two"))
    assert read(f"sqlite:///{tmp_path}/two/fairlead.db", table_rows.store_facts)["epoch"] > (first or 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="without root all tenants are one user")
def test_files_belong_to_the_tenants_user_of_the_new_home(home: Home, tmp_path: Path) -> None:
    (home.job("done-1") / "output" / "link").symlink_to("deep/model.safetensors")
    backup(home, tmp_path / "b.tar")
    new = Home(tmp_path / "new")
    restore(tmp_path / "b.tar", new)
    uid = tenant_uid(new, 0)
    for name in ("output", "output/deep", "output/deep/model.safetensors", "output/link"):
        assert (new.job("done-1") / name).lstat().st_uid == uid, name
    assert (new.job("done-1") / "output" / "link").readlink() == Path("deep/model.safetensors")
    assert (new.job("done-1") / "logs" / "w0.log").stat().st_uid == 0, "logs stay the platform's"
    assert stat.S_IMODE((new.job("done-1") / "output").stat().st_mode) == 0o700


@pytest.mark.parametrize("way", ["there", "back"])
def test_a_platform_moves_between_sqlite_and_postgresql(
    home: Home, tmp_path: Path, postgres_server: PostgresServer, way: str
) -> None:
    url = postgres_server.empty_database()
    backup(home, tmp_path / "b.tar.zst")
    restore(tmp_path / "b.tar.zst", Home(tmp_path / "pg"), store=url)
    assert not (tmp_path / "pg" / "fairlead.db").exists()
    assert json.loads((tmp_path / "pg" / "profile.json").read_text())["store"] == url, "the next start finds it"
    assert read(url, jobs.get, "runs-1").loss == float("inf")
    store = Opened(Store.open(url))
    run(store.store.acquire_lease("test", 1e9))
    assert store.write(lambda conn: events.append(conn, time_s=9.0, kind="k", text="next")) > 3
    if way == "back":
        backup(Home(tmp_path / "pg"), tmp_path / "c.tar.zst")
        restore(tmp_path / "c.tar.zst", Home(tmp_path / "lite"))
        there, back = content(url), content(f"sqlite:///{tmp_path}/lite/fairlead.db")
        for table in ("tenants", "submissions", "secrets", "usage", "usage_hours"):
            assert sorted(map(str, there[table])) == sorted(map(str, back[table])), table
    else:
        with pytest.raises(Refused, match="the database is not empty"):
            restore(tmp_path / "b.tar.zst", Home(tmp_path / "again"), store=url)
        assert not (tmp_path / "again").exists()
    run(store.store.close())


def test_a_backup_of_an_older_schema_is_restored_into_this_one(tmp_path: Path) -> None:
    old = Home(tmp_path / "old")
    old.create()
    engines = connect(f"sqlite:///{old.database}")
    with engines.writer.begin() as conn:
        migrate.upgrade(conn, None, "0001")
        conn.execute(text("INSERT INTO tenants VALUES ('vision', 1.0, NULL, '{}', 0, 5.0)"))
        conn.execute(
            text("INSERT INTO usage VALUES (1, 'j', 'vision', 't', 1, 'node-0', 'cpu', 2, 1.0, 0.0, 10.0, 3.0)")
        )
    engines.dispose()
    assert backup(old, tmp_path / "b.tar").schema == "0001"
    restore(tmp_path / "b.tar", Home(tmp_path / "new"))
    after = content(f"sqlite:///{tmp_path}/new/fairlead.db")
    assert after["usage_days"] == [(0, "vision", 20.0)], "the migrations ran over the rows"
    run(Store.open(f"sqlite:///{tmp_path}/new/fairlead.db").close())
