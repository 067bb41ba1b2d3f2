"""Reading a job's logs piece by piece: nothing is lost, nothing comes twice, whatever the workers write."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.agent.embedded import worker_logs
from fairlead.agent.embedded.backend import LocalBackend
from fairlead.control.observability.log_tails import PIECE_BYTES
from fairlead.control.records import Generation, Job, JobPhase, Role, Token
from fairlead.control.service.core import Core
from fairlead.control.service.queries import QueryVerbs
from fairlead.home import Home
from tests.control import made
from tests.control.stores import run


class Watching(QueryVerbs):
    """The verbs over one job's folder, without a store."""

    def __init__(self, home: Home) -> None:
        backend = LocalBackend(home)
        super().__init__(cast(Core, SimpleNamespace(home=home, controller=SimpleNamespace(backend=backend))))
        self.found = made.job()
        self.folder = home.job(self.found.id) / "logs"
        self.folder.mkdir(parents=True)

    async def _find(self, who: Token, ref: str) -> tuple[Job, list[Generation]]:
        return self.found, []

    def read(
        self, cursor: dict[str, int], worker: str | None = None, lines: int = 100_000
    ) -> tuple[list[str], dict[str, int]]:
        async def every() -> tuple[list[str], dict[str, int]]:
            reader = await self.log(made.token(Role.MEMBER), "job", cursor, worker, lines)
            read = [json.loads(line)["text"] async for piece in reader.written() for line in piece.lines]
            return read, reader.cursor

        return run(every())


@pytest.fixture
def watching(tmp_path: Path) -> Watching:
    return Watching(Home(tmp_path))


def write(watching: Watching, worker: str, data: bytes) -> None:
    with (watching.folder / f"{worker}.log").open("ab") as file:
        file.write(data)


def test_bytes_that_are_no_text_do_not_move_the_readers_place(watching: Watching) -> None:
    write(watching, "w0", b"first\n" + b"\xff" * 10)
    lines, cursor = watching.read({})
    assert (lines, cursor) == (["first"], {"w0": 6})
    write(watching, "w0", b"\nlast\n")
    lines, cursor = watching.read(cursor)
    assert lines == ["\ufffd" * 10, "last"]
    assert cursor == {"w0": 6 + 10 + 6}


def test_a_line_without_an_end_is_told_in_pieces(watching: Watching) -> None:
    write(watching, "w0", b"x" * PIECE_BYTES)
    lines, cursor = watching.read({})
    assert sum(map(len, lines)) == PIECE_BYTES
    write(watching, "w0", b"y")
    assert watching.read(cursor)[0] == [], "a young line is waited for"


def test_one_workers_log_is_not_hidden_behind_the_others(watching: Watching) -> None:
    write(watching, "w0", b"loud\n" * 300_000)
    write(watching, "w1", b"quiet\n")
    assert watching.read({}, "w1")[0] == ["quiet"]


ODD = st.sampled_from(["a", "é", "\n", "\r", "\r\n", "\x0b", "\x85", "\u2028", "\u20ac", "\ud800", "line\n"])


@given(st.lists(ODD, max_size=60).map("".join), st.integers(0, 12), st.integers(1, 20))
def test_the_last_lines_are_found_from_the_end_whatever_ends_them(text: str, lines: int, block: int) -> None:
    with tempfile.TemporaryDirectory() as name, mock.patch.object(worker_logs, "_BLOCK", block):
        folder = Path(name)
        (folder / "logs").mkdir()
        data = text.encode("utf-8", "surrogateescape" if "\ud800" not in text else "replace")
        (folder / "logs" / "w0.log").write_bytes(data)
        begins, ends = worker_logs.last_lines(folder, lines, {}, whole=False)
        assert ends == {"w0": len(data)}
        every = data.decode(errors="replace").splitlines()
        last = every[len(every) - min(lines, len(every)) :]
        assert data[begins["w0"] :].decode(errors="replace").splitlines() == last


def test_of_several_workers_the_last_ones_lines_come_first_into_a_tail(watching: Watching) -> None:
    write(watching, "w0", b"a\nb\nc\n")
    write(watching, "w1", b"d\ne\n")
    assert watching.read({}, lines=3)[0] == ["c", "d", "e"]
    assert watching.read({}, lines=1)[0] == ["e"]
    assert watching.read({}, lines=0)[0] == []
    assert watching.read({"w0": 2}, lines=100)[0] == ["b", "c", "d", "e"]


def test_a_reader_of_a_long_log_holds_one_piece_of_it(watching: Watching) -> None:
    write(watching, "w0", b"x\n" * 200_000 + b"\r" * 50_000 + b"long " * 100_000 + b"\n")

    async def sizes() -> list[int]:
        reader = await watching.log(made.token(Role.MEMBER), "job", {}, None, 1_000_000)
        return [piece.size async for piece in reader.written()]

    found = run(sizes())
    assert len(found) > 200 and max(found) <= 2 * PIECE_BYTES


@pytest.mark.parametrize("name", ["../w0", "*", ""])
def test_the_name_of_a_worker_opens_nothing_else(watching: Watching, name: Any) -> None:
    write(watching, "w0", b"text\n")
    watching.found = made.job(phase=JobPhase.FAILED)
    assert watching.read({}, name)[0] == []
