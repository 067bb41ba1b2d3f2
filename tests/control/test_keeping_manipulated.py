"""Archives that somebody manipulated: restoring them touches nothing outside the new home, whatever they hold."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.control.backup import archive, safe_tree
from fairlead.control.backup.create import backup
from fairlead.control.backup.restore import restore
from fairlead.control.serve import store_url
from fairlead.errors import Refused
from fairlead.home import Home

from .backups import platform_home

Members = list[tuple[tarfile.TarInfo, bytes]]


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good backup."""
    folder = tmp_path_factory.mktemp("taken")
    backup(platform_home(folder / "home"), folder / "b.tar", with_keys=True)
    return folder / "b.tar"


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """A tree of the machine, of which no mode, owner, time, name or byte may change."""
    root = tmp_path / "canary"
    (root / "deep").mkdir(parents=True)
    for name in ("file", "deep/file", "output", "profile.json"):
        (root / name).write_text("canary")
        (root / name).chmod(0o604)
    (root / "deep").chmod(0o2750)
    root.chmod(0o1755)
    if os.geteuid() == 0:
        os.chown(root / "deep", 12, 34)
        os.chown(root / "file", 56, 78)
    before = seen(root)
    yield root
    assert seen(root) == before


def seen(root: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for place in (root, *root.rglob("*")):
        at = place.lstat()
        data = place.read_bytes() if stat.S_ISREG(at.st_mode) else b""
        found[str(place)] = (at.st_mode, at.st_uid, at.st_gid, at.st_ino, at.st_nlink, at.st_mtime_ns, data)
    return found


def forged(source: Path, target: Path, change: Callable[[Members], Members]) -> Path:
    """The archive with other members, and checksums that fit them."""
    with tarfile.open(source) as old:
        members = [(member, file.read() if (file := old.extractfile(member)) else b"") for member in old.getmembers()]
    last = members.pop()[0]
    members = change(members)
    sums = {}
    for member, data in members:
        text = os.fsencode(member.linkname) if member.issym() else data
        sums[member.name] = hashlib.sha256(member.pax_headers.get("FAIRLEAD.extents", "").encode() * member.isreg()
                                           + text).hexdigest()  # fmt: skip
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as new:
        for member, data in (*members, (last, json.dumps(sums).encode())):
            member.size = len(data) if member.isreg() else 0
            new.addfile(member, io.BytesIO(data))
    return target


def member(name: str, kind: bytes = tarfile.REGTYPE, link: object = "", mode: int = 0o644) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode, made.mtime = kind, str(link), mode, 1000.0
    return made


def refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="the backup cannot be used"):
        restore(file, Home(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".new*"))


OUTPUT = "jobs/done-1/output"


@pytest.mark.parametrize("name", [
    "jobs/x", "jobs/done-1", OUTPUT, "jobs/done-1/logs", "jobs/done-1/logs/w9.log", "jobs/done-1/home/x", "tls",
    "tls/key.pem", "profile.json", "secret.key", "state.json", "run/nodes.json", "run", "store/jobs.jsonl", "store",
    ".store/jobs.jsonl", "bundles", "bundles/vision", "bundles/vision/x.tar.gz", "fairlead.db", "logs", "jobs",
])  # fmt: skip
@pytest.mark.parametrize("first", [True, False])
def test_a_link_is_refused_wherever_a_tenant_makes_none(
    name: str, first: bool, taken: Path, canary: Path, tmp_path: Path
) -> None:
    link = (member(name, tarfile.SYMTYPE, canary), b"")

    def change(members: Members) -> Members:
        kept = [each for each in members if each[0].name != name]
        return [kept[0], link, *kept[1:]] if first else [*kept, link]

    refused(forged(taken, tmp_path / "f.tar", change), tmp_path)


@pytest.mark.parametrize("kind", [
    tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CONTTYPE,
    tarfile.GNUTYPE_SPARSE,
])  # fmt: skip
@pytest.mark.parametrize("name", [f"{OUTPUT}/x", "profile.json", "jobs/x"])
def test_what_is_neither_file_nor_link_is_refused(
    name: str, kind: bytes, taken: Path, canary: Path, tmp_path: Path
) -> None:
    strange = member(name, kind, canary / "file" if kind == tarfile.LNKTYPE else "")
    strange.devmajor, strange.devminor = 1, 3
    refused(forged(taken, tmp_path / "f.tar", lambda all_: [*all_, (strange, b"")]), tmp_path)


@pytest.mark.parametrize("name", [
    "{canary}/file", "../canary/file", f"{OUTPUT}/../../../../canary/file", "jobs/../../canary/file", f"{OUTPUT}//x",
    f"./{OUTPUT}/x", f"{OUTPUT}/./x", "jobs/done-1/x", "jobs/x", "bundles/x", "store/../x.jsonl", "store/a/b.jsonl",
    "tls/other.pem", "fairlead.db", f"{OUTPUT}/{'n' * 300}", "checksums.json/x", ".", "..", "jobs/../output/x/y",
])  # fmt: skip
def test_a_name_that_no_backup_has_is_refused(name: str, taken: Path, canary: Path, tmp_path: Path) -> None:
    strange = member(name.format(canary=canary))
    refused(forged(taken, tmp_path / "f.tar", lambda all_: [*all_, (strange, b"planted")]), tmp_path)


@pytest.mark.parametrize("way", ["through", "over", "twice", "links", "file as folder"])
def test_two_members_of_one_place_are_refused(way: str, taken: Path, canary: Path, tmp_path: Path) -> None:
    link = (member(f"{OUTPUT}/l", tarfile.SYMTYPE, canary), b"")
    file, inside = (member(f"{OUTPUT}/l"), b"planted"), (member(f"{OUTPUT}/l/file"), b"planted")
    added = {
        "through": [link, inside], "over": [file, link], "twice": [file, (member(f"{OUTPUT}/l"), b"planted")],
        "links": [link, (member(f"{OUTPUT}/l", tarfile.SYMTYPE, canary / "deep"), b"")],
        "file as folder": [file, inside],
    }[way]  # fmt: skip
    refused(forged(taken, tmp_path / "f.tar", lambda all_: [*all_, *added]), tmp_path)


def test_a_link_of_a_tenant_comes_back_and_nothing_behind_it_changes(taken: Path, canary: Path, tmp_path: Path) -> None:
    links = [(member(f"{OUTPUT}/{name}", tarfile.SYMTYPE, target), b"")
             for name, target in (("a", canary), ("b/c", canary / "file"), ("d", "../../../.."))]  # fmt: skip
    restore(forged(taken, tmp_path / "f.tar", lambda all_: [*all_, *links]), Home(tmp_path / "new"))
    assert (tmp_path / "new" / OUTPUT / "a").is_symlink()
    assert (tmp_path / "new" / OUTPUT / "b" / "c").readlink() == canary / "file"


def test_a_folder_of_no_known_job_is_left_out_and_told(taken: Path, canary: Path, tmp_path: Path) -> None:
    added = [(member("jobs/stranger-1/output/a/b"), b"x"),
             (member("jobs/stranger-1/output/a/l", tarfile.SYMTYPE, canary), b"")]  # fmt: skip
    back = restore(forged(taken, tmp_path / "f.tar", lambda all_: [*all_, *added]), Home(tmp_path / "new"))
    assert back.left_out == 1
    assert not (tmp_path / "new" / "jobs" / "stranger-1").exists()
    assert (tmp_path / "new" / OUTPUT / "deep" / "model.safetensors").exists()


@pytest.mark.parametrize(("of", "name"), [
    ("runs-1", "../../canary"), ("runs-1", ".."), ("runs-1", "/etc"), ("runs-1", ""), ("vision", "../../canary"),
    ("vision", "a\\n"),
])  # fmt: skip
def test_a_job_or_tenant_whose_name_is_a_path_is_refused(
    of: str, name: str, taken: Path, canary: Path, tmp_path: Path
) -> None:
    def change(members: Members) -> Members:
        return [(each, data.replace(f'"{of}"'.encode(), f'"{name}"'.encode()) if "store/" in each.name else data)
                for each, data in members]  # fmt: skip

    refused(forged(taken, tmp_path / "f.tar", change), tmp_path)


def test_no_file_comes_back_with_the_rights_of_its_owner_for_whoever_runs_it(taken: Path, tmp_path: Path) -> None:
    added = [(member(f"{OUTPUT}/x", mode=0o6755), b"x")]
    restore(forged(taken, tmp_path / "f.tar", lambda all_: [*all_, *added]), Home(tmp_path / "new"))
    assert stat.S_IMODE((tmp_path / "new" / OUTPUT / "x").stat().st_mode) == 0o755


@pytest.mark.parametrize("place", ["jobs", "jobs/done-1", OUTPUT, f"{OUTPUT}/deep", f"{OUTPUT}/deep/model.safetensors"])
def test_a_folder_that_becomes_a_link_in_the_midst_is_not_followed(
    place: str, taken: Path, canary: Path, tmp_path: Path
) -> None:
    """Nobody but the platform can reach the folder that is being filled; what if?"""

    def swap(done: int, total: int, what: str) -> None:
        if what == "files":
            (stage,) = tmp_path.glob(".new.restoring-*")
            (stage / place).rename(stage / "aside")
            (stage / place).symlink_to(canary)

    try:
        restore(taken, Home(tmp_path / "new"), progress=swap)
    except Refused as error:
        assert "should be a folder" in str(error)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_second_name_of_a_file_of_the_machine_is_not_given_away(canary: Path, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    outside = tmp_path / "outside"
    outside.write_text("x")
    os.link(outside, tmp_path / "given" / "second")
    (tmp_path / "given" / "own").write_text("y")
    (tmp_path / "given" / "link").symlink_to(canary)
    with safe_tree.open_folder(tmp_path / "given") as folder:
        safe_tree.change_owner(folder, 4321)
    assert outside.stat().st_uid == 0
    assert {(tmp_path / "given" / name).lstat().st_uid for name in ("own", "link", ".")} == {4321}


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(("name", "data"), [
    ("state.json", b"[]"), ("state.json", b"{}"), ("state.json", b"nothing"), ("store/jobs.jsonl", b""),
    ("store/jobs.jsonl", b'["nonsense"]\n[1]\n'), ("store/jobs.jsonl", b"[]\n[1]\n"), ("store/jobs.jsonl", b"{"),
    (archive.HEADER, b'{"format": 1}'), (archive.HEADER, b"[]"),
    (archive.HEADER, b'{"format": 1, "schema": "0001", "version": "x", "taken_s": 1e308, "bytes": 1}'),
    (archive.HEADER, b'{"format": 1, "schema": "no such", "version": "x", "taken_s": 1, "bytes": 1}'),
    (archive.HEADER, b'{"format": 1, "schema": "0001", "version": "x", "taken_s": 1' + b"0" * 400 + b', "bytes": 1}'),
    ("state.json", DEEP), (archive.HEADER, DEEP), ("store/jobs.jsonl", b'["id"]\n' + DEEP), ("profile.json", DEEP),
    ("profile.json", b"[]"), ("profile.json", b'"x"'), ("profile.json", b"{"), ("profile.json", b'{"token": "x y"}'),
    ("profile.json", b'{"token": 5}'),
], ids=lambda value: value[:60])  # fmt: skip
def test_words_that_make_no_sense_are_damage(name: str, data: bytes, taken: Path, tmp_path: Path) -> None:
    def change(members: Members) -> Members:
        return [(each, data if each.name == name else old) for each, old in members]

    with pytest.raises(Refused):
        restore(forged(taken, tmp_path / "f.tar", change), Home(tmp_path / "new"))
    assert not list(tmp_path.glob("*new*"))


def test_an_archive_chooses_neither_the_store_nor_the_address_of_the_next_start(taken: Path, tmp_path: Path) -> None:
    token = "fl_abc123_" + "0" * 48
    evil = {"token": token, "store": f"sqlite:///{tmp_path}/evil.db", "url": "http://evil.example:1", "pid": 1,
            "certificate": "/tmp/x.pem", "sharing": {"fair": 1e9}}  # fmt: skip

    def change(members: Members) -> Members:
        return [(each, json.dumps(evil).encode() if each.name == "profile.json" else old) for each, old in members]

    home = Home(tmp_path / "new")
    restore(forged(taken, tmp_path / "f.tar", change), home)
    assert json.loads(home.profile.read_text()) == {"token": token}
    assert store_url(None, home) == f"sqlite:///{home.database}"


@pytest.mark.parametrize("moment", ["1e300", "nan", "-1e300"])
def test_a_time_that_no_file_can_have_is_the_first_one(moment: str, taken: Path, tmp_path: Path) -> None:
    strange = member(f"{OUTPUT}/x")
    strange.pax_headers = {"mtime": moment}
    restore(forged(taken, tmp_path / "f.tar", lambda all_: [*all_, (strange, b"x")]), Home(tmp_path / "new"))
    assert (tmp_path / "new" / OUTPUT / "x").stat().st_mtime == 0
