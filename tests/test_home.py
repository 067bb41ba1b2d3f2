"""The home folder: what it opens to others, and what it leaves as it was."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fairlead.home import Home


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_home_can_only_be_passed_through(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    assert [mode(path) for path in (home.root, home.jobs)] == [0o711, 0o711]
    assert {mode(path) for path in (home.bundles, home.logs, home.run)} == {0o700}
    assert not home.memory.exists(), "memory is made where nodes run"


def test_a_folder_that_was_there_keeps_its_mode_but_for_passing_through(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    Home(tmp_path).create()
    assert mode(tmp_path) == 0o751
    Home(tmp_path).create()
    assert mode(tmp_path) == 0o751


def test_two_homes_share_neither_memory_nor_bundles(tmp_path: Path) -> None:
    one, two = Home(tmp_path / "one"), Home(tmp_path / "two")
    assert one.memory != two.memory
    assert one.bundle("a", "sha256:00") != one.bundle("b", "sha256:00")


def test_memory_of_a_job_is_forgotten_however_deep_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home")
    folder = home.job_memory("node-0", "job-1")
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    for _ in range(3000):  # deeper than Python's stack and the table of open files
        os.mkdir("d")  # noqa: PTH102 (one call, three thousand times)
        os.chdir("d")
    os.chdir("/")
    home.forget_job_memory("node-0", "job-1")
    assert not (home.memory / "job-1").exists()
    home.memory.rmdir()
