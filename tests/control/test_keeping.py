"""Backups: whole, checked, closed to others; and what comes back is what was there, in whichever database."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from sqlalchemy import Connection, insert, select, text, update

from fairlead.control.keeping import archive, holes, rows
from fairlead.control.keeping.restore import restore
from fairlead.control.keeping.take import backup
from fairlead.control.orders import tenant_uid
from fairlead.control.records import GenerationPhase, JobPhase, LoggedEvent
from fairlead.control.store import Store, audit, events, generations, jobs, ledger, migrate, schema, tenants
from fairlead.control.store.connections import connect
from fairlead.errors import Conflict, FairleadError, InvalidSpec, NotFound, Refused, Unavailable
from fairlead.home import Home
from fairlead.removal import remove
from fairlead.specs import TenantSpec

from . import made
from .postgres import PostgresServer
from .stores import Opened, a_job, run

TAKEN = ("b.tar", "b.tar.gz", "b.tar.zst")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home as a platform leaves it: two tenants, jobs in every phase, their files, and odd ones among them."""
    home = Home(tmp_path / "home")
    home.create()
    store = Store.open(f"sqlite:///{home.database}")
    run(store.lead("test", 1e9))
    fill(Opened(store))
    run(store.resign())
    run(store.close())
    (home.run / "nodes.json").write_text('[{"name":"node-0","cpu":1,"memory_bytes":5,"devices":1}]')
    (home.root / "profile.json").write_text(json.dumps({"url": "http://x", "token": "fl_a_b", "pid": 1}))
    home.secret_key.write_text("the key\n")
    put(home.bundles / "vision" / "abc.tar.gz", b"code")
    put(home.job("runs-1") / "snapshots" / "snapshot-40.pt", b"state of step 40")
    put(home.job("runs-1") / "snapshots" / ".snapshot-41.pt.7.tmp", b"half")
    put(home.job("runs-1") / "code" / "train.py", b"unpacked again")
    put(home.job("done-1") / "snapshots" / "snapshot-9.pt", b"nobody needs it any more")
    put(home.job("done-1") / "output" / "deep" / "model.safetensors", bytes(300_000))
    put(home.job("done-1") / "logs" / "w0.log", b"hello\n")
    return home


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def fill(db: Opened) -> None:
    def work(conn: Connection) -> None:
        for name in ("vision", "text"):
            tenants.insert(conn, TenantSpec(name=name, weight=2.5))
        for name, phase, then in (
            ("runs", JobPhase.RUNNING, None), ("done", JobPhase.SUCCEEDED, None), ("waits", JobPhase.QUEUED, None),
            ("ends", JobPhase.STOPPING, JobPhase.SUCCEEDED), ("yields", JobPhase.STOPPING, JobPhase.QUEUED),
        ):  # fmt: skip
            job = a_job(name, id=f"{name}-1", phase=phase, then=then, loss=float("inf"), speeds={2: 7.5}, generation=1)
            jobs.insert(conn, job, {"name": name, "env": {"ä": "\u2028 \U0001f600"}}, {"team": "x"}, name, "digest")
        for job_id, phase in (("runs-1", GenerationPhase.RUNNING), ("done-1", GenerationPhase.ENDED)):
            generations.insert(conn, made.generation(("w0", "node-0"), ("w1", "node-1"), job=job_id, phase=phase))
        events.append(conn, time_s=1.0, kind="k", text="t", facts={"deep": [1, {"x": None}]})
        events.append(conn, time_s=2.0, kind="k", text="forgotten later")
        audit.append(conn, time_s=1.0, actor="a", action="b", target="c")
        ledger.append(conn, [made.usage("vision", 2, 10.0, 20.0)])
        secret = {"tenant": "vision", "name": "KEY", "ciphertext": b"\x00\xff", "changed_s": 1.0, "changed_by": "tok"}
        conn.execute(insert(schema.secrets), secret)
        conn.execute(text("DELETE FROM events WHERE id = 2"))

    db.write(work)


def content(url: str) -> dict[str, list[Any]]:
    engines = connect(url)
    with engines.reader.connect() as conn:
        found = {
            table.name: [tuple(row) for row in conn.execute(select(table).order_by(*table.primary_key.columns))]
            for table in rows.tables(conn)
        }
    engines.dispose()
    return found


def read(url: str, work: Any, *arguments: Any) -> Any:
    engines = connect(url)
    with engines.reader.connect() as conn:
        found = work(conn, *arguments)
    engines.dispose()
    return found


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
    assert json.loads((tmp_path / "having" / "profile.json").read_text()) == {"token": "fl_a_b"}


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
    old = read(f"sqlite:///{home.database}", rows.facts)["epoch"]
    assert read(url, rows.facts)["epoch"] > max(old, 1_600_000_000)
    new: list[LoggedEvent] = read(url, events.after, 0, 99)
    assert min(event.id for event in new if event.time_s > 5.0) == 3, "ids are not given twice, not even forgotten ones"
    store = Store.open(url)
    assert run(store.lead("next", 3.0)), "nobody else leads"
    run(store.close())


def test_a_second_restore_outranks_the_first(home: Home, tmp_path: Path) -> None:
    backup(home, tmp_path / "b.tar")
    restore(tmp_path / "b.tar", Home(tmp_path / "one"))
    store = Store.open(f"sqlite:///{tmp_path}/one/fairlead.db")
    first = run(store.lead("one", 3.0))
    run(store.close())
    backup(Home(tmp_path / "one"), tmp_path / "c.tar")
    restore(tmp_path / "c.tar", Home(tmp_path / "two"))
    assert read(f"sqlite:///{tmp_path}/two/fairlead.db", rows.facts)["epoch"] > (first or 0)


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
    run(store.store.lead("test", 1e9))
    assert store.write(lambda conn: events.append(conn, time_s=9.0, kind="k", text="next")) > 3
    if way == "back":
        backup(Home(tmp_path / "pg"), tmp_path / "c.tar.zst")
        restore(tmp_path / "c.tar.zst", Home(tmp_path / "lite"))
        there, back = content(url), content(f"sqlite:///{tmp_path}/lite/fairlead.db")
        for table in ("tenants", "submissions", "secrets", "usage", "usage_hours"):
            assert sorted(map(str, there[table])) == sorted(map(str, back[table])), table
    else:
        with pytest.raises(Refused, match="something in the database already"):
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


# ---------------------------------------------------------------- what is refused


def test_only_an_empty_home_is_restored_into(home: Home, tmp_path: Path) -> None:
    backup(home, tmp_path / "b.tar")
    with pytest.raises(Refused, match="is not empty"):
        restore(tmp_path / "b.tar", home)
    (tmp_path / "empty").mkdir(mode=0o750)
    restore(tmp_path / "b.tar", Home(tmp_path / "empty"))
    assert stat.S_IMODE((tmp_path / "empty").stat().st_mode) == 0o751, "its mode, and room to pass through"


def repacked(source: Path, target: Path, change: Any) -> Path:
    """The archive with one member's bytes changed, or left out where the change says None."""
    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for member in old.getmembers():
            file = old.extractfile(member)
            data = change(member, file.read() if file else b"")
            if data is not None:
                member.size = len(data) if member.isreg() else 0
                new.addfile(member, io.BytesIO(data))
    return target


def test_a_damaged_backup_brings_back_nothing(home: Home, tmp_path: Path) -> None:
    backup(home, tmp_path / "b.tar")
    whole = (tmp_path / "b.tar").read_bytes()

    def flipped(member: tarfile.TarInfo, data: bytes) -> bytes:
        return data.replace(b"hello", b"hullo") if member.name.endswith("w0.log") else data

    def missing(member: tarfile.TarInfo, data: bytes) -> bytes | None:
        return None if member.name.endswith("jobs.jsonl") else data

    def outside(member: tarfile.TarInfo, data: bytes) -> bytes:
        member.name = "../evil" if member.name.endswith("w0.log") else member.name
        return data

    def stranger(member: tarfile.TarInfo, data: bytes) -> bytes:
        member.name = "run/host.pid" if member.name.endswith("w0.log") else member.name
        return data

    def planted(member: tarfile.TarInfo, data: bytes) -> bytes:
        if member.name.endswith("w0.log"):
            member.type, member.linkname = tarfile.LNKTYPE, "/etc/passwd"
        return data

    cases = {
        "is not as it was written": repacked(tmp_path / "b.tar", tmp_path / "1.tar", flipped),
        "jobs.jsonl": repacked(tmp_path / "b.tar", tmp_path / "2.tar", missing),
        "'../evil'": repacked(tmp_path / "b.tar", tmp_path / "3.tar", outside),
        "'run/host.pid'": repacked(tmp_path / "b.tar", tmp_path / "4.tar", stranger),
        "does not belong": repacked(tmp_path / "b.tar", tmp_path / "5.tar", planted),
    }
    for name, data in (
        ("cut.tar", whole[: len(whole) // 2]), ("end.tar", whole[: whole.rindex(b"checksums.json")]),
        ("no.tar", b"hello"), ("none.tar", b""), ("no.tar.gz", b"hello"), ("no.tar.zst", b"hello"),
        ("cut.tar.gz", gzip.compress(whole)[:-99]), ("cut.tar.zst", zstandard.compress(whole)[:-99]),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(data)
        cases[f"cannot be used:|{name}"] = tmp_path / name
    for said, file in cases.items():
        with pytest.raises(Refused, match=said.partition("|")[0]):
            restore(file, Home(tmp_path / "new"))
        assert not (tmp_path / "new").exists() and not list(tmp_path.glob(".new*")), file


def test_a_backup_of_a_newer_fairlead_is_refused_at_once(home: Home, tmp_path: Path) -> None:
    backup(home, tmp_path / "b.tar")

    def newer(field: str, value: Any) -> Any:
        def change(member: tarfile.TarInfo, data: bytes) -> bytes:
            return json.dumps(json.loads(data) | {field: value}).encode() if member.name == archive.HEADER else data

        return change

    for field, value, said in (("schema", "0999", "schema 0999"), ("format", 2, "format 2")):
        file = repacked(tmp_path / "b.tar", tmp_path / f"{field}.tar", newer(field, value))
        with pytest.raises(Refused, match=said) as caught:
            restore(file, Home(tmp_path / "new"))
        assert "restore it with" in str(caught.value.fix)


def test_what_makes_no_sense_is_said_in_one_line(home: Home, tmp_path: Path) -> None:
    for work, kind in (
        (lambda: backup(home, tmp_path / "b.zip"), InvalidSpec),
        (lambda: backup(home, tmp_path / ".tar"), InvalidSpec),
        (lambda: backup(Home(tmp_path / "none"), tmp_path / "b.tar"), Unavailable),
        (lambda: backup(home, tmp_path / "no" / "folder.tar"), Refused),
        (lambda: restore(tmp_path / "none.tar", Home(tmp_path / "new")), NotFound),
        (lambda: restore(tmp_path / "none.rar", Home(tmp_path / "new")), InvalidSpec),
    ):
        with pytest.raises(kind) as caught:
            work()
        assert isinstance(caught.value, FairleadError) and caught.value.fix and "\n" not in str(caught.value)


# ---------------------------------------------------------------- strangers' files


def test_what_a_tenant_planted_is_not_followed(home: Home, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the platform")
    output = home.job("done-1") / "output"
    (output / "link").symlink_to(tmp_path / "secret")
    (output / "folder").symlink_to(tmp_path)
    os.mkfifo(output / "pipe")
    (home.job("waits-1")).mkdir()
    (home.job("waits-1") / "output").symlink_to(tmp_path)
    backup(home, tmp_path / "b.tar")
    assert b"of the platform" not in (tmp_path / "b.tar").read_bytes()
    with tarfile.open(tmp_path / "b.tar") as tar:
        names = tar.getnames()
    assert not [
        name
        for name in names
        if name.startswith(("jobs/waits-1", "jobs/done-1/output/folder/", "jobs/done-1/output/pipe"))
    ]
    restore(tmp_path / "b.tar", Home(tmp_path / "new"))
    assert (tmp_path / "new" / "jobs" / "done-1" / "output" / "link").is_symlink()


def test_a_file_that_grows_or_shrinks_under_way_keeps_the_archive_whole() -> None:
    out = io.BytesIO()
    writer = archive.Writer(out, lambda size: None)
    writer.copy("jobs/a/logs/grows", io.BytesIO(b"12345"), 3)
    writer.copy("jobs/a/logs/shrinks", io.BytesIO(b"1"), 3)
    writer.finish()
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as tar:
        found = {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]
    assert (found["jobs/a/logs/grows"], found["jobs/a/logs/shrinks"]) == (b"123", b"1\0\0")
    promised = json.loads(found[archive.CHECKSUMS])
    assert promised["jobs/a/logs/shrinks"] == hashlib.sha256(b"1\0\0").hexdigest()


def test_a_backup_sees_one_moment_of_a_store_that_is_being_written(home: Home, tmp_path: Path) -> None:
    """A writer commits between any two tables: either all of it is in, or none."""
    engines = connect(f"sqlite:///{home.database}")

    def write(done: int, total: int, what: str) -> None:
        if what == "store":
            with engines.writer.begin() as conn:
                conn.execute(update(schema.tenants).values(weight=schema.tenants.c.weight + 1))
                conn.execute(update(schema.jobs).values(priority=schema.jobs.c.priority + 1))

    backup(home, tmp_path / "b.tar", progress=write)
    engines.dispose()
    restore(tmp_path / "b.tar", Home(tmp_path / "new"))
    url = f"sqlite:///{tmp_path}/new/fairlead.db"
    weights = {tenant.weight for tenant in read(url, tenants.all)}
    priorities = {job.priority for job in read(url, lambda conn: jobs.page(conn, limit=99)[0])}
    assert weights == {priorities.pop() + 2.5} and not priorities


def test_no_folder_is_too_deep_and_no_name_too_long_for_the_others_to_come_back(home: Home, tmp_path: Path) -> None:
    """A tenant must not be able to keep the platform from being backed up, or from coming back."""
    output = home.job("done-1") / "output"
    for folder, name, levels in ((output / "deep", "d", 1500), (output / "long", "n" * 250, 100)):
        folder.mkdir(exist_ok=True)
        here = os.open(folder, os.O_RDONLY)
        for _ in range(levels):
            os.mkdir(name, dir_fd=here)
            below = os.open(name, os.O_RDONLY, dir_fd=here)
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
            os.close(here)
            here = below
        os.close(here)
    taken = backup(home, tmp_path / "b.tar.gz")
    assert any("not in the backup" in note for note in taken.notes)
    new = Home(tmp_path / "new")
    restore(tmp_path / "b.tar.gz", new)
    back = new.job("done-1") / "output"
    assert (back / "deep" / "d" / "d" / "file").exists()
    assert (back / "deep" / "model.safetensors").read_bytes() == bytes(300_000)
    remove(output)


def test_holes_of_a_file_are_neither_packed_nor_filled(home: Home, tmp_path: Path) -> None:
    claimed = home.job("done-1") / "output" / "claims-much"
    with claimed.open("wb") as file:
        for place in (1 << 20, 1 << 30, 1 << 34):
            file.seek(place)
            file.write(b"here")
        file.truncate(1 << 40)  # a terabyte, of which a tenant needs no byte
    empty = home.job("done-1") / "output" / "claims-nothing-but"
    empty.touch()
    os.truncate(empty, 1 << 40)
    backup(home, tmp_path / "b.tar")
    assert (tmp_path / "b.tar").stat().st_size < 1 << 22
    new = Home(tmp_path / "new")
    restore(tmp_path / "b.tar", new)
    back = new.job("done-1") / "output" / "claims-much"
    assert (back.stat().st_size, back.stat().st_blocks * 512 < 1 << 22) == (1 << 40, True)
    assert back.with_name(empty.name).stat().st_size == 1 << 40
    with back.open("rb") as file:
        for place in (1 << 20, 1 << 30, 1 << 34):
            file.seek(place - 2)
            assert file.read(8) == b"\0\0here\0\0"


@pytest.mark.parametrize("text", ["5+5,0+3;9", "0+5;3", "0+-1;3", "x;3", "0+5", "0+2;9"])
def test_places_of_bytes_that_make_no_sense_are_damage(home: Home, tmp_path: Path, text: str) -> None:
    with (tmp_path / "file").open("wb") as file, pytest.raises(ValueError, match=r"parts|int"):
        holes.Sink(file, text).write(b"12345")
