"""Ranks of a new generation come to one state: the furthest, a living one before a file, a whole file before none."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from fairlead.errors import FairleadError, InvalidSpec, TrainingFailed
from fairlead.training.group import Group
from fairlead.training.snapshots.flat_state import FlatState, read_state
from fairlead.training.snapshots.snapshotter import Snapshots
from fairlead.training.state_agreement import AgreedState, agree_on_state
from tests.training.ranks import together


class Carried:
    """A state that is a number of steps and a text, and counts how often it was taken over."""

    def __init__(self, step: int = 0, text: str = "fresh", *, live: bool = False, half: bool = False) -> None:
        self.step, self.text, self.live, self.half = step, text, live, half
        self.diverged = self.weights_lost = False
        self.lines = ["weight of shape (3,)", "10 samples"]
        self.loads = 0

    @property
    def position(self) -> int:
        return 2 * self.step + self.half

    def description(self) -> list[str]:
        return self.lines

    def dump(self) -> bytes:
        buffer = io.BytesIO()
        torch.save({"step": self.step, "text": self.text, "half": self.half}, buffer)
        return buffer.getvalue()

    def load(self, data: bytes | FlatState) -> None:
        found = read_state(data, torch.device("cpu"))
        self.step, self.text, self.half = found["step"], found["text"], bool(found.get("half"))
        self.live, self.weights_lost, self.loads = True, False, self.loads + 1


def stores(place: Path, rank: int) -> Snapshots:
    return Snapshots(place / f"disk-{rank}", place / f"memory-{rank}" / "job" / "n0", lambda *_: None)


def agreed(place: Path, carried: list[Carried]) -> tuple[AgreedState, list[Carried]]:
    def work(group: Group) -> AgreedState:
        return agree_on_state(group, carried[group.rank], stores(place, group.rank))

    found = together(place, len(carried), work)
    assert all(each.live and not each.diverged and not each.weights_lost for each in carried)
    assert len(set(found)) == 1
    return found[0], carried


def stored(place: Path, rank: int, step: int, text: str) -> Path:
    store = stores(place, rank)
    store.write(step, {"step": step, "text": text}, wait=True)
    return store.find()[0].path


def test_nobody_has_anything_so_all_begin_as_the_first_of_them(tmp_path: Path) -> None:
    found, carried = agreed(tmp_path, [Carried(text="a"), Carried(text="b")])
    assert found == AgreedState(0, "start") and [each.text for each in carried] == ["a", "a"]


def test_whoever_is_furthest_gives_and_the_others_take(tmp_path: Path) -> None:
    carried = [Carried(4, "four", live=True), Carried(6, "six", live=True), Carried()]
    found, _ = agreed(tmp_path, carried)
    assert found == AgreedState(6, "a living worker")
    assert [(each.text, each.loads) for each in carried] == [("six", 1), ("six", 0), ("six", 1)]


def test_ranks_that_are_equally_far_keep_what_they_have(tmp_path: Path) -> None:
    carried = [Carried(6, "mine", live=True), Carried(6, "yours", live=True)]
    assert agreed(tmp_path, carried)[0] == AgreedState(6, "a living worker")
    assert [each.loads for each in carried] == [0, 0]


def test_with_its_epoch_closed_a_rank_is_further(tmp_path: Path) -> None:
    carried = [Carried(6, "open", live=True), Carried(6, "closed", live=True, half=True)]
    agreed(tmp_path, carried)
    assert [each.text for each in carried] == ["closed", "closed"]


def test_only_those_who_lack_the_state_take_it(tmp_path: Path) -> None:
    carried = [Carried(6, "a", live=True), Carried(), Carried(6, "c", live=True)]
    agreed(tmp_path, carried)
    assert [(each.text, each.loads) for each in carried] == [("a", 0), ("a", 1), ("c", 0)]


@pytest.mark.parametrize("adrift", [0, 1])
def test_where_somebody_is_adrift_all_take_the_state_of_one(tmp_path: Path, adrift: int) -> None:
    carried = [Carried(6, "a", live=True), Carried(6, "b", live=True)]
    carried[adrift].diverged = True
    agreed(tmp_path, carried)
    assert [(each.text, each.loads) for each in carried] == [("a", 0), ("a", 1)]


def test_a_file_that_is_further_goes_before_a_living_worker_and_one_as_far_goes_behind(tmp_path: Path) -> None:
    stored(tmp_path, 1, 9, "file")
    carried = [Carried(8, "alive", live=True), Carried(3, "slow", live=True)]
    assert agreed(tmp_path, carried)[0] == AgreedState(9, "memory")
    assert [each.text for each in carried] == ["file", "file"]
    carried = [Carried(9, "alive", live=True), Carried(3, "slow", live=True)]
    assert agreed(tmp_path, carried)[0] == AgreedState(9, "a living worker")
    assert [each.text for each in carried] == ["alive", "alive"]


def test_a_worker_that_is_behind_is_not_asked_for_what_it_no_longer_holds(tmp_path: Path) -> None:
    stored(tmp_path, 0, 2, "file")
    found, carried = agreed(tmp_path, [Carried(7, "behind", live=False), Carried(7, "behind", live=False)])
    assert found == AgreedState(2, "memory") and [each.text for each in carried] == ["file", "file"]


def test_a_damaged_file_is_passed_over_for_the_next_of_anybody(tmp_path: Path) -> None:
    for step, text in ((2, "old"), (9, "new")):
        stored(tmp_path, 0, step, text)
    for path in tmp_path.glob("*-0/**/snapshot-9.*"):
        path.write_bytes(path.read_bytes()[:-20] + b"x" * 20)
    stored(tmp_path, 1, 5, "between")
    found, carried = agreed(tmp_path, [Carried(), Carried()])
    assert found == AgreedState(5, "memory") and [each.text for each in carried] == ["between", "between"]


def test_a_rank_alone_reads_its_own(tmp_path: Path) -> None:
    stored(tmp_path, 0, 3, "file")
    found, (carried,) = agreed(tmp_path, [Carried()])
    assert (found, carried.text, carried.loads) == (AgreedState(3, "memory"), "file", 1)
    found, (carried,) = agreed(tmp_path, [Carried(4, "alive", live=True)])
    assert (found, carried.text, carried.loads) == (AgreedState(4, "a living worker"), "alive", 0)


def test_an_empty_shell_is_filled_from_the_first_snapshot_and_refused_without_any(tmp_path: Path) -> None:
    def shells() -> list[Carried]:
        made = [Carried(), Carried()]
        for each in made:
            each.weights_lost = True
        return made

    with pytest.raises(TrainingFailed, match="no snapshot"):
        agreed(tmp_path, shells())
    for rank in range(2):
        stored(tmp_path, rank, 0, "at the beginning")
    _, carried = agreed(tmp_path, shells())
    assert [each.text for each in carried] == ["at the beginning"] * 2


def test_ranks_that_made_another_model_are_refused_by_all_alike(tmp_path: Path) -> None:
    carried = [Carried(4), Carried(4), Carried(4)]
    carried[1].lines = ["weight of shape (3,)", "11 samples"]
    carried[2].lines = ["weight of shape (4,)", "10 samples"]

    def refused(said: list[Carried]) -> list[str]:
        def work(group: Group) -> str:
            with pytest.raises(InvalidSpec) as error:
                agree_on_state(group, said[group.rank], stores(tmp_path, group.rank))
            return str(error.value)

        return together(tmp_path, len(said), work)

    told = refused(carried)
    assert len(set(told)) == 1
    assert "rank 1 differs from rank 0 at step 5: 11 samples instead of 10 samples" in told[0]
    longer = [Carried(), Carried()]
    longer[1].lines = [*longer[0].lines, "one more"]
    assert all("one more instead of nothing more" in text for text in refused(longer))


def test_who_cannot_read_what_all_wait_for_does_not_leave_them_waiting(tmp_path: Path) -> None:
    """A rank whose state raises while it is taken over ends; the others hear of it as of a lost peer."""

    class Broken(Carried):
        def load(self, data: Any) -> None:
            raise InvalidSpec("holds more than plain values", field="optimizer")

    stored(tmp_path, 0, 3, "file")
    with pytest.raises(FairleadError, match="plain values"):
        agreed(tmp_path, [Broken(), Carried()])
