"""What a stage's worker says of an error decides what follows: another try, its inputs made anew, or the end."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fairlead import wire
from fairlead.errors import FairleadError, InvalidSpec, NotFound, Refused, TooLarge, Unavailable
from fairlead.local_wire import PlacedSpec
from fairlead.pipelines import results, worker
from fairlead.pipelines.result_places import GridStore


def placed(run: str, folder: Path) -> PlacedSpec:
    """A stage's worker with all its folders in one."""
    return PlacedSpec("j", "t", None, run, None, {}, {}, None, None, 1.0, folder=str(folder), memory_folder=str(folder))


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (Refused("the grid has no room"), False), (Unavailable("no grid"), False), (TooLarge("never fits"), True),
        (InvalidSpec("wrong"), True),
    ],
)  # fmt: skip
def test_what_may_pass_is_tried_again(
    error: FairleadError, permanent: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[Any] = []

    def fails(self: object) -> int:
        raise error

    monkeypatch.setattr(worker._FunctionWorker, "run", fails)
    monkeypatch.setattr(worker, "Channel", lambda _: SimpleNamespace(send=said.append))
    spec = placed("flow.py:one", tmp_path)
    assert worker.main(spec, "w", None) == 1  # type: ignore[arg-type]
    assert [(type(each), each.permanent) for each in said] == [(wire.Raised, permanent)]


class _Grid:
    """Has one block, which cannot be read back."""

    def __init__(self, reached: bool) -> None:
        self._reached = reached

    def open(self, block: str) -> Any:
        raise Unavailable("block b cannot be restored from disk: spoiled")

    def usage(self) -> None:
        if not self._reached:
            raise Unavailable("the grid process is not there")


def test_a_spoiled_block_is_gone_and_a_grid_that_is_away_is_waited_for() -> None:
    with pytest.raises(NotFound, match="spoiled"):
        GridStore(_Grid(True)).open("b")  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="not there"):
        GridStore(_Grid(False)).open("b")  # type: ignore[arg-type]


def test_only_numbers_that_a_float_holds_are_figures() -> None:
    given = {"a": 1, "b": 0.5, "nan": float("nan"), "inf": float("inf"), "long": 10**400, "yes": True, 3: 4}
    assert worker.figures(given) == {"a": 1.0, "b": 0.5}
    assert (worker.figures(2), worker.figures(float("nan")), worker.figures(10**400)) == ({"value": 2.0}, {}, {})
    assert worker.figures(dict.fromkeys(map(str, range(101)), 1)) == {}


def test_a_stage_gives_as_many_values_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from fairlead import stage\n@stage(outputs=2)\ndef three(): return 1, 2, 3\n"
    (tmp_path / "three_values.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    spec = placed("three_values.py:three", tmp_path)
    with pytest.raises(InvalidSpec, match="returned 3 values, but outputs is 2"):
        worker.StageWork(spec, results.FolderStore(tmp_path)).call()


def test_text_that_is_no_utf8_is_passed_on_as_it_is(tmp_path: Path) -> None:
    place = results.FolderStore(tmp_path)
    for value in ("bad \udc80 text", {"\udc80": 1}, ["\udc80"]):
        reference = results.put(value, place, "stage/p/s")
        msgspec.json.encode(reference)
        assert results.get(reference, place) == value
    assert worker.figures({"\udc80": 1.0, "good": 1.0}) == {"good": 1.0}
