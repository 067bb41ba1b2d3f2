"""Backups of what strangers wrote: links, holes, depth, and files that change under way."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from sqlalchemy import update

from fairlead.control.backup import archive, sparse_files
from fairlead.control.backup.create import backup
from fairlead.control.backup.restore import restore
from fairlead.control.store import jobs, schema, tenants
from fairlead.control.store.connections import connect
from fairlead.home import Home
from fairlead.safe_removal import remove

from .backups import platform_home, read


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return platform_home(tmp_path / "home")


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
    weights = {tenant.weight for tenant in read(url, tenants.all_tenants)}
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
    with (tmp_path / "file").open("wb") as file, pytest.raises(ValueError, match=r"extents|int"):
        sparse_files.SparseWriter(file, text).write(b"12345")


def test_progress_says_how_much_there_is_and_never_that_more_was_read(home: Home, tmp_path: Path) -> None:
    output = home.job("done-1") / "output"
    output.mkdir(parents=True, exist_ok=True)
    (output / "model").write_bytes(os.urandom(3 << 20))
    for way in ("packing", "unpacking"):
        told: list[tuple[int, int]] = []

        def report(done: int, total: int, what: str, told: list[tuple[int, int]] = told, way: str = way) -> None:
            if what == way:
                told.append((done, total))

        if way == "packing":
            backup(home, tmp_path / "b.tar", progress=report)
        else:
            restore(tmp_path / "b.tar", Home(tmp_path / "new"), progress=report)
        assert told or way == "packing"
        if told:
            assert told == sorted(told) and all(done <= total for done, total in told)
            assert told[0][0] < told[0][1], "not all of it at once"
