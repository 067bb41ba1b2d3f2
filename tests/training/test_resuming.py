"""Real workers whose snapshots lie in the grid: whoever starts the job again goes on from there, on the same curve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import wire
from tests.training.conftest import MakeGang, MakeGrid
from tests.training.gang import Gang
from tests.training.programs import BLOCKS, SMALL
from tests.training.test_exactness import assert_same_result, train
from tests.training.test_own_loop import LOOP
from tests.training.test_plans import LONGER, PLANS

STEPS = {"layers": "both", "epochs": 12}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gang]:
    gang = Gang(tmp_path_factory.mktemp("undisturbed"), SMALL, STEPS)
    try:
        yield train(gang, 1)
    finally:
        gang.close()


def without_disk(gang: Gang) -> None:
    for path in (gang.root / "snapshots").glob("*"):
        path.unlink()


def notes(gang: Gang) -> list[Path]:
    return list(gang.root.rglob("snapshot-*.grid"))


def until_in_memory(gang: Gang, name: str, after: int = 1) -> None:
    def there() -> bool:
        return any(s.where == "memory" and s.step > after for s in gang.workers[name].heard(wire.Snapshot))

    gang.until(there, "a snapshot is in memory")


def test_a_preempted_job_resumes_on_another_node_from_the_grid_of_the_first(
    make_gang: MakeGang, make_grid: MakeGrid, undisturbed: Gang
) -> None:
    make_grid("n0")
    gang = make_gang(SMALL, STEPS | {"slow": 0.01}, folder="disturbed")
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.join("w0", "w1")
    gang.reach(8)
    gang.leave(snapshot=True)
    step = gang.workers["w0"].last(wire.Left).step
    gang.finish()
    assert notes(gang)
    without_disk(gang)
    make_grid("n1")
    gang.start("w2", node="n1")
    gang.ready("w2")
    gang.join("w2")
    assert gang.workers["w2"].last(wire.Joined).step == step > 0
    assert f"from step {step} (memory)" in gang.log("w2")
    gang.finish()
    assert_same_result(undisturbed, gang)


def test_when_everybody_is_killed_the_next_ones_go_on_from_the_grid(
    make_gang: MakeGang, make_grid: MakeGrid, undisturbed: Gang
) -> None:
    make_grid("n0")
    gang = make_gang(SMALL, STEPS | {"slow": 0.06}, folder="disturbed")
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.join("w0", "w1")
    until_in_memory(gang, "w0")
    gang.kill("w0")
    gang.kill("w1")
    gang.until(lambda: all(gang.workers[name].code is not None for name in ("w0", "w1")), "everybody is dead")
    without_disk(gang)
    gang.params = STEPS
    gang.start("w2", "w3")
    gang.ready("w2", "w3")
    gang.join("w2", "w3")
    told = [s for s in gang.workers["w0"].heard(wire.Snapshot) if s.where == "memory"]
    assert gang.workers["w3"].last(wire.Joined).step >= told[-1].step > 0
    assert all(0 < snapshot.waited_s <= snapshot.seconds for snapshot in told)
    gang.finish()
    assert_same_result(undisturbed, gang)


def test_a_loop_of_ones_own_goes_on_from_the_grid(make_gang: MakeGang, make_grid: MakeGrid) -> None:
    make_grid("n0")
    gang = make_gang(LOOP, {"slow": 0.05, "steps": 200}, folder="own")
    gang.start("w0")
    gang.ready("w0")
    gang.join("w0")
    until_in_memory(gang, "w0")
    gang.kill("w0")
    gang.until(lambda: gang.workers["w0"].code is not None, "it is dead")
    without_disk(gang)
    gang.start("w1")
    gang.ready("w1")
    gang.join("w1")
    assert gang.workers["w1"].last(wire.Joined).step > 0 and "(memory)" in gang.log("w1")


def test_parts_of_a_spread_model_go_to_disk_as_ever_and_a_whole_state_into_the_grid(
    make_gang: MakeGang, make_grid: MakeGrid
) -> None:
    make_grid("n0")
    gang = make_gang(BLOCKS, LONGER | {"slow": 0.02, "parts": True})
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.join("w0", "w1", plan=PLANS["fsdp2"], silence_s=120.0)
    gang.reach(2)
    gang.leave(snapshot=True)
    step = gang.workers["w0"].last(wire.Left).step
    gang.finish()
    assert notes(gang) and (gang.root / "snapshots" / f"snapshot-{step}.parts").is_dir()
    gang.start("w2")
    gang.ready("w2")
    gang.join("w2")
    assert gang.workers["w2"].last(wire.Joined).step == step
    gang.finish()
    alone = make_gang(BLOCKS, LONGER, folder="alone")
    alone.start("a0")
    alone.ready("a0")
    alone.join("a0")
    alone.finish()
    assert_same_result(alone, gang, 1e-9)
