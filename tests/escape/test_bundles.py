"""Tricks in a code bundle, sent as it is over HTTP: none of them writes or reads outside of the job's own folder."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Scene

Make = Callable[[tarfile.TarFile, Path], None]


def _file(archive: tarfile.TarFile, name: str, data: bytes = b"stolen", **fields: Any) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for field, value in fields.items():
        setattr(member, field, value)
    archive.addfile(member, io.BytesIO(data))


def _link(archive: tarfile.TarFile, name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    archive.addfile(member)


def _device(archive: tarfile.TarFile, home: Path) -> None:
    member = tarfile.TarInfo("disk")
    member.type, member.devmajor, member.devminor = tarfile.BLKTYPE, 254, 0
    archive.addfile(member)


def _through_a_link(archive: tarfile.TarFile, home: Path) -> None:
    _link(archive, "way", str(home))
    _file(archive, "way/escaped.txt")


def _through_two_links(archive: tarfile.TarFile, home: Path) -> None:
    _link(archive, "a", ".")
    _link(archive, "a/b", "..")
    _link(archive, "a/b/c", "..")
    _file(archive, "a/b/c/escaped.txt")


TRICKS: dict[str, Make] = {
    "a path upwards": lambda archive, home: _file(archive, "../escaped.txt"),
    "a path far upwards": lambda archive, home: _file(archive, "x/../../../../../../../../tmp/escaped.txt"),
    "a whole path": lambda archive, home: _file(archive, str(home / "escaped.txt")),
    "a link to the home and a file through it": _through_a_link,
    "links upon links": _through_two_links,
    "a link to the store": lambda archive, home: _link(archive, "store", str(home / "fairlead.db")),
    "a link to the store, by the way up": lambda archive, home: _link(archive, "store", "../../../fairlead.db"),
    "a hard link to the store": lambda archive, home: _link(
        archive, "store", str(home / "fairlead.db"), tarfile.LNKTYPE
    ),
    "a device": _device,
    "a set-user-id program": lambda archive, home: _file(archive, "program", mode=0o6777, uid=0, gid=0),
}


def _request(scene: Scene, method: str, path: str, body: bytes, kind: str) -> tuple[int, Any]:
    url = json.loads(scene.home.profile.read_text())["url"]
    request = urllib.request.Request(f"{url}{path}", data=body, method=method)
    request.add_header("Authorization", f"Bearer {scene.mallory.token}")
    request.add_header("Content-Type", kind)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.mark.parametrize("trick", TRICKS)
def test_it_is_refused_or_does_nothing(scene: Scene, trick: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        _file(archive, "look.py", LOOK)
        TRICKS[trick](archive, scene.home.root)
    digest = f"sha256:{hashlib.sha256(packed.getvalue()).hexdigest()}"
    status, _ = _request(scene, "PUT", f"/api/v1/bundles/{digest}", packed.getvalue(), "application/octet-stream")
    assert status < 500
    if status >= 400:
        return
    spec = {"name": "trick", "command": ["python", "look.py"], "code": digest, "resources": {"cpu": 0.2}}
    status, job = _request(scene, "POST", "/api/v1/jobs", json.dumps(spec).encode(), "application/json")
    assert status == 201, job
    ended = scene.wait(scene.mallory, job["id"])
    assert "GOT IT" not in scene.mallory("logs", job["id"]).out, ended
    assert not [path for path in (scene.home.root / "escaped.txt", Path("/tmp/escaped.txt")) if path.exists()]
    assert not list(scene.home.jobs.glob("escaped.txt")), "written beside the jobs"


LOOK = b"""
import os
for folder, names, files in os.walk("."):
    for name in [*names, *files]:
        path = os.path.join(folder, name)
        try:
            with open(path, "rb") as file:
                if file.read(15) == b"SQLite format 3":
                    print("GOT IT", path)
            if os.stat(path).st_mode & 0o6000 and os.stat(path).st_uid == 0:
                print("GOT IT", path)
        except OSError:
            pass
"""
