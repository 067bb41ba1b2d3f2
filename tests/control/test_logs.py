"""Reading a job's logs piece by piece: nothing is lost, nothing comes twice, whatever the workers write."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairlead.backends.local.backend import LocalBackend
from fairlead.control.records import Generation, Job, JobPhase, Role, Token
from fairlead.control.service.core import Core
from fairlead.control.service.watching import LONGEST_LINE, WatchVerbs
from fairlead.home import Home
from tests.control import made
from tests.control.stores import run


class Watching(WatchVerbs):
    """The verbs over one job's folder, without a store."""

    def __init__(self, home: Home) -> None:
        backend = LocalBackend(home)
        super().__init__(cast(Core, SimpleNamespace(home=home, controller=SimpleNamespace(backend=backend))))
        self.found = made.job()
        self.folder = home.job(self.found.id) / "logs"
        self.folder.mkdir(parents=True)

    async def _find(self, who: Token, ref: str) -> tuple[Job, list[Generation]]:
        return self.found, []

    def read(self, cursor: dict[str, int], worker: str | None = None) -> tuple[list[str], dict[str, int], bool]:
        lines, after, ended = run(self.logs(made.token(Role.MEMBER), "job", cursor, worker))
        return [line.text for line in lines], after, ended


@pytest.fixture
def watching(tmp_path: Path) -> Watching:
    return Watching(Home(tmp_path))


def write(watching: Watching, worker: str, data: bytes) -> None:
    with (watching.folder / f"{worker}.log").open("ab") as file:
        file.write(data)


def test_bytes_that_are_no_text_do_not_move_the_readers_place(watching: Watching) -> None:
    write(watching, "w0", b"first\n" + b"\xff" * 10)
    lines, cursor, _ = watching.read({})
    assert (lines, cursor) == (["first"], {"w0": 6})
    write(watching, "w0", b"\nlast\n")
    lines, cursor, _ = watching.read(cursor)
    assert lines == ["\ufffd" * 10, "last"]
    assert cursor == {"w0": 6 + 10 + 6}


def test_a_line_without_an_end_is_told_in_pieces(watching: Watching) -> None:
    write(watching, "w0", b"x" * LONGEST_LINE)
    lines, cursor, _ = watching.read({})
    assert sum(map(len, lines)) == LONGEST_LINE
    write(watching, "w0", b"y")
    assert watching.read(cursor)[0] == [], "a young line is waited for"


def test_one_workers_log_is_not_hidden_behind_the_others(watching: Watching) -> None:
    write(watching, "w0", b"loud\n" * 300_000)
    write(watching, "w1", b"quiet\n")
    assert watching.read({}, "w1")[0] == ["quiet"]


@pytest.mark.parametrize("name", ["../w0", "*", ""])
def test_the_name_of_a_worker_opens_nothing_else(watching: Watching, name: Any) -> None:
    write(watching, "w0", b"text\n")
    watching.found = made.job(phase=JobPhase.FAILED)
    assert watching.read({}, name)[0] == []
