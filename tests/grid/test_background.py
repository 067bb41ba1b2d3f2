"""What a grid process does beside answering: it goes on whatever its priority, and never ends unnoticed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fairlead.grid import process as grid_process
from fairlead.grid.process import GridProcess


class _Over(Exception):
    """Ends what would go on for ever."""


def _over(*_: object) -> None:
    raise _Over


@pytest.fixture
def process(tmp_path: Path) -> GridProcess:
    with socket.socket() as control:
        return GridProcess(control, tmp_path)


@pytest.mark.parametrize(("nice", "asked"), [(0, 10), (15, 15)])
def test_it_is_made_no_less_nice_than_it_is(
    nice: int, asked: int, process: GridProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[int] = []

    def refuse(kind: int, who: int, priority: int) -> None:
        said.append(priority)
        raise PermissionError

    monkeypatch.setattr(grid_process.os, "getpriority", lambda kind, who: nice)
    monkeypatch.setattr(grid_process.os, "setpriority", refuse)
    monkeypatch.setattr(grid_process.time, "sleep", _over)
    with pytest.raises(_Over):
        process._work_in_background()
    assert said == [asked]


def test_a_background_that_ends_takes_the_process_with_it(
    process: GridProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(process, "_work_in_background", _over)
    monkeypatch.setattr(grid_process.os, "_exit", ended.append)
    process._background()
    assert ended == [1]
