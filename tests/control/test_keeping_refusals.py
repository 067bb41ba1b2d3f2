"""What no backup is made from and nothing is brought back from, and how that is said."""

from __future__ import annotations

import gzip
import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from fairlead.control.backup import archive
from fairlead.control.backup.create import backup
from fairlead.control.backup.restore import restore
from fairlead.errors import FairleadError, InvalidSpec, NotFound, Refused, Unavailable
from fairlead.home import Home

from .backups import platform_home, repacked


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return platform_home(tmp_path / "home")


def test_only_an_empty_home_is_restored_into(home: Home, tmp_path: Path) -> None:
    backup(home, tmp_path / "b.tar")
    with pytest.raises(Refused, match="is not empty"):
        restore(tmp_path / "b.tar", home)
    (tmp_path / "empty").mkdir(mode=0o750)
    restore(tmp_path / "b.tar", Home(tmp_path / "empty"))
    assert stat.S_IMODE((tmp_path / "empty").stat().st_mode) == 0o751, "its mode, and room to pass through"


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
        "is wrong": repacked(tmp_path / "b.tar", tmp_path / "1.tar", flipped),
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
