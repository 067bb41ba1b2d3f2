"""Promises about files that a result brings: beside the folder nothing, over what is there nothing, each one whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cli.errors import execute
from fairlead.cli.main import app
from fairlead.errors import Conflict, InvalidSpec, NotFound, Unavailable
from fairlead.sdk.downloads import Downloaded, download
from fairlead.views.jobs import ResultView
from tests.cli.hostile_server import HOSTILE, Mood, hostile_server


def result(*names: str) -> ResultView:
    return ResultView(job="a-1", state="succeeded", artifacts=list(names))


def fetch(name: str) -> Iterator[bytes]:
    yield b"bytes of "
    yield name.encode("utf-8", "replace")


def held(folder: Path) -> dict[str, bytes]:
    return {str(place.relative_to(folder)): place.read_bytes() for place in folder.rglob("*") if place.is_file()}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "around" / "out"


@pytest.mark.parametrize("name", [
    "", ".", "..", "/", "/etc/x", "../x", "a/../../x", "a/..", "a//b", "a/", "./a", "a/.", "a\0b", "\0",
])  # fmt: skip
def test_a_name_that_leads_beside_the_folder_is_refused_before_anything_is_written(name: str, out: Path) -> None:
    with pytest.raises(InvalidSpec, match="would leave the folder"):
        download(result("good", name), out, fetch, force=True)
    assert not out.parent.exists()


def test_a_link_in_the_folder_leads_no_file_out_of_it(out: Path, tmp_path: Path) -> None:
    out.mkdir(parents=True)
    (out / "sub").symlink_to(tmp_path)
    with pytest.raises(InvalidSpec, match="by a link"):
        download(result("sub/x"), out, fetch, force=True)
    (tmp_path / "mine").write_text("mine")
    (out / "x").symlink_to(tmp_path / "mine")
    download(result("x"), out, fetch, force=True)
    assert (tmp_path / "mine").read_text() == "mine"
    assert held(out) == {"x": b"bytes of x"}
    assert not (out / "x").is_symlink()


@pytest.mark.parametrize("name", [".bashrc", "model.bin", "deep/file"])
def test_what_is_there_is_replaced_only_when_one_says_so(name: str, out: Path) -> None:
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("mine")
    with pytest.raises(Conflict, match="already exists; nothing was written") as caught:
        download(result("first", name), out, fetch)
    assert "--force" in str(caught.value.fix)
    assert held(out) == {name: b"mine"}
    download(result("first", name), out, fetch, force=True)
    assert held(out) == {"first": b"bytes of first", name: f"bytes of {name}".encode()}


def test_a_folder_is_never_replaced_and_a_file_never_becomes_one(out: Path) -> None:
    (out / "x").mkdir(parents=True)
    (out / "y").write_text("mine")
    for name in ("x", "y/z"):
        with pytest.raises(Conflict, match="nothing was written"):
            download(result(name), out, fetch, force=True)
    assert held(out) == {"y": b"mine"}


@pytest.mark.parametrize("names", [("a\x1b", "a\x07"), ("a", "a/b"), ("a_", "a\n")])
def test_two_files_never_share_a_place(names: tuple[str, ...], out: Path) -> None:
    with pytest.raises(InvalidSpec, match="two artifacts"):
        download(result(*names), out, fetch, force=True)
    assert not out.exists()


def test_characters_that_steer_a_terminal_are_in_no_name(out: Path) -> None:
    named = "a\x1b]0;owned\x07\r\n\u202e\x9b/b\tc"
    got = download(result(named, "ä ✓.bin"), out, fetch)
    assert sorted(held(out)) == ["a_]0;owned____/b_c", "ä ✓.bin"]
    assert got.renamed == {named: "a_]0;owned____/b_c"}


def test_one_file_that_the_platform_does_not_give_leaves_the_others(out: Path) -> None:
    def but_one(name: str) -> Iterator[bytes]:
        if name == "linked":
            raise NotFound("there is no such artefact")
        return fetch(name)

    got = download(result("a", "linked", "z"), out, but_one)
    assert isinstance(got, Downloaded)
    assert got.left_out == {"linked": "there is no such artefact"}
    assert sorted(held(out)) == ["a", "z"]


def test_a_file_that_breaks_off_is_not_there_and_leaves_nothing(out: Path) -> None:
    def breaks(name: str) -> Iterator[bytes]:
        yield b"half"
        raise Unavailable("gone")

    with pytest.raises(Unavailable):
        download(result("a"), out, breaks)
    assert list(out.iterdir()) == []


def test_a_file_of_a_part_s_name_is_no_way_through(out: Path) -> None:
    download(result(".a.part", "a", "n" * 255), out, fetch)
    assert sorted(held(out)) == [".a.part", "a", "n" * 255]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Mood]:
    with hostile_server() as (url, mood):
        monkeypatch.setenv("FAIRLEAD_URL", url)
        monkeypatch.setenv("FAIRLEAD_TOKEN", "fl_a_b")
        monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path / "home"))
        mood.state = "succeeded"
        yield mood


def names(mood: Mood, *artifacts: str) -> None:
    body = json.dumps({"job": "a-1", "state": "succeeded", "artifacts": artifacts}).encode()
    mood.overrides = {"/jobs/a/result": lambda: body, "/jobs/a/artifacts/": lambda: b"bytes"}


def test_the_command_says_what_it_left_out_and_what_is_called_otherwise(
    server: Mood, out: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names(server, "a", HOSTILE.replace("\0", ""))
    assert execute(app, ["result", "a", "--download", str(out)]) == 0
    said = capfd.readouterr().out
    assert "was saved as a_]0;owned__" in said
    assert len(held(out)) == 2
    assert execute(app, ["result", "a", "--download", str(out)]) == 4
    assert "--force" in capfd.readouterr().err
    assert execute(app, ["result", "a", "--download", str(out), "--force"]) == 0
    server.overrides.pop("/jobs/a/artifacts/")
    server.error = 404
    assert execute(app, ["result", "a", "--download", str(out), "--force"]) == 1
    assert "not downloaded: 'a'" in capfd.readouterr().out


def test_a_hostile_server_makes_the_command_write_nowhere_else(
    server: Mood, out: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("", ".", "..", "../evil", f"{tmp_path}/evil", "a\0"):
        names(server, name)
        assert execute(app, ["result", "a", "--download", str(out)]) == 2
        assert not out.parent.exists()
        assert not (tmp_path / "evil").exists()
    assert "would leave the folder" in capfd.readouterr().err
