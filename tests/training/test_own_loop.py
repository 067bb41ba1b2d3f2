"""People who keep their own loop: reports, snapshots and generations work for a bare function of a context."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from fairlead import Training, wire
from fairlead.errors import InvalidSpec
from fairlead.training.custom_loop.context import Context, checked_state
from tests.training.conftest import MakeGang
from tests.training.gang import Gang
from tests.training.test_exactness import train

LOOP = """
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import fairlead

def training(steps: int = 12, slow: float = 0.0, keeps: bool = True, wrong: str = ""):
    def loop(context):
        torch.manual_seed(1)
        x = torch.randn(96, 5, dtype=torch.float64)
        y = x.sum(1, keepdim=True)
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        begun, state = 0, context.restore()
        if state is not None:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            begun = state["step"]
        print(f"begins at {begun} as {context.rank} of {context.world} in {context.generation}", flush=True)
        ddp = DistributedDataParallel(model) if context.world > 1 else model
        for step in range(begun, steps):
            a, b = context.shard((x, y), epoch=step)
            loss = nn.functional.mse_loss(ddp(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(slow)
            if wrong == "nan" and step == 3 and context.rank == context.world - 1:
                loss = float("nan")
            if wrong == "raise" and step == 3 and context.rank == context.world - 1:
                raise KeyError("odd")
            if wrong == "early" and step == 3 and context.rank == 1:
                return model
            if wrong == "metrics" and context.rank == 1:
                context.report(step=step + 1, loss=loss, other=1.0)
            context.report(step=step + 1, of=steps, loss=loss, norm=float(model[0].weight.detach().norm()))
            if keeps:
                context.snapshot(lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                                          "step": step + 1})
        return model
    return fairlead.Training(loop=loop, batch_size=96)
"""


def history(gang: Gang) -> dict[int, dict[str, float]]:
    rows = [json.loads(line) for line in (gang.root / "output" / "history.jsonl").read_text().splitlines()]
    return {int(row["step"]): row for row in rows}


def begin(gang: Gang, *names: str) -> Gang:
    gang.start(*names)
    gang.ready(*names)
    gang.join(*names)
    return gang


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    gang = Gang(tmp_path_factory.mktemp("own") / "job", LOOP)
    train(gang, 1)
    yield gang
    gang.close()


def assert_same_course(gang: Gang, alone: Gang) -> None:
    expected, found = history(alone), history(gang)
    assert list(found) == list(expected)
    for step, row in expected.items():
        assert (found[step]["loss"], found[step]["norm"]) == pytest.approx((row["loss"], row["norm"]), abs=1e-9)


def test_it_reports_and_leaves_its_model_and_figures(alone: Gang) -> None:
    finished = alone.workers["w0"].last(wire.Finished)
    assert finished.step == 12 and set(finished.metrics) == {"loss", "norm"}
    assert finished.artifacts == ["model.safetensors", "metrics.json", "history.jsonl"]
    assert alone.workers["w0"].last(wire.Progress).total_steps == 12
    assert sorted(alone.curve()) == list(range(1, 13))


def test_two_workers_with_ddp_of_their_own_come_to_the_same(make_gang: MakeGang, alone: Gang) -> None:
    assert_same_course(train(make_gang(LOOP), 2), alone)


def test_it_grows_and_shrinks_from_where_it_was(make_gang: MakeGang, alone: Gang) -> None:
    gang = begin(make_gang(LOOP, {"slow": 0.1}), "w0")
    gang.start("w1", "w2")
    gang.ready("w1", "w2")
    gang.reach(2)
    gang.leave()
    gang.join("w0", "w1", "w2")
    gang.reach(6)
    gang.leave(exits=["w0"])
    gang.join("w2", "w1")
    gang.finish()
    assert_same_course(gang, alone)
    assert re.search(r"begins at [1-9]\d* as 1 of 3 in 2", gang.log("w1"))


def test_a_preempted_loop_goes_on_from_its_snapshot(make_gang: MakeGang, alone: Gang) -> None:
    gang = begin(make_gang(LOOP, {"slow": 0.1}), "w0", "w1")
    gang.reach(3)
    gang.leave(snapshot=True)
    step = gang.workers["w0"].last(wire.Left).step
    begin(gang, "w2")
    assert gang.workers["w2"].last(wire.Joined).step == step >= 3
    gang.finish()
    assert_same_course(gang, alone)


def test_who_survives_a_kill_goes_on_from_the_last_snapshot(make_gang: MakeGang) -> None:
    gang = begin(make_gang(LOOP, {"slow": 0.06, "steps": 30}), "w0", "w1")
    gang.until(lambda: any(s.step > 1 for s in gang.workers["w0"].heard(wire.Snapshot)), "a snapshot on the way")
    step = gang.workers["w0"].last(wire.Snapshot).step
    gang.kill("w1")
    gang.until(lambda: gang.said("w0", wire.Broken), "the survivor noticed")
    gang.join("w0")
    assert gang.workers["w0"].last(wire.Joined).step >= step
    gang.finish()
    assert list(history(gang)) == list(range(1, 31))


def test_without_snapshots_it_leaves_all_the_same_and_begins_anew(make_gang: MakeGang, alone: Gang) -> None:
    gang = begin(make_gang(LOOP, {"slow": 0.05, "keeps": False}), "w0")
    gang.reach(3)
    gang.leave()
    gang.join("w0")
    gang.finish()
    assert "begins at 0 as 0 of 1 in 2" in gang.log("w0")
    assert_same_course(gang, alone)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("nan", r"loss: it is nan at step 4 on rank 1"),
        ("early", r"report: rank 1 has returned while rank 0 reports step 4"),
        ("metrics", r"report: rank 1 reports step 1 with other metrics while rank 0 reports step 1"),
    ],
)
def test_what_ranks_do_not_do_alike_ends_all_with_rank_and_step(make_gang: MakeGang, wrong: str, words: str) -> None:
    gang = make_gang(LOOP, {"wrong": wrong})
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.join("w0", "w1", wait=False)
    gang.until(lambda: all(w.code is not None for w in gang.workers.values()), "both ended")
    assert {bool(re.match(words, w.last(wire.Raised).error)) for w in gang.workers.values()} == {True}, gang.story()


def test_an_error_is_told_with_its_line_rank_and_step_and_the_peer_waits_for_the_next(make_gang: MakeGang) -> None:
    gang = begin(make_gang(LOOP, {"wrong": "raise"}), "w0", "w1")
    gang.until(lambda: gang.workers["w1"].code is not None, "it ended")
    error = gang.workers["w1"].last(wire.Raised).error
    assert re.match(r"KeyError: 'odd' \(train.py:\d+\), rank 1, step 4", error)
    gang.until(lambda: gang.said("w0", wire.Broken), "its peer noticed")


# ---------------------------------------------------------------- the context by itself


class Behind:
    device, seed, generation = torch.device("cpu"), 5, 1

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def report(self, step: int, of: int, epoch: int, values: dict[str, float]) -> None: ...
    def snapshot(self, state: Any) -> None: ...
    def restored(self) -> None: ...


@settings(deadline=None)
@given(st.integers(1, 50), st.integers(1, 6), st.one_of(st.none(), st.integers(0, 3)))
def test_shards_are_the_whole_once_in_an_order_that_does_not_depend_on_the_workers(
    count: int, world: int, epoch: int | None
) -> None:
    x = torch.arange(count)
    parts = [Context(Behind(rank, world)).shard((x, x.numpy()), epoch=epoch) for rank in range(world)]
    whole = torch.cat([part[0] for part in parts])
    assert whole.sort().values.tolist() == x.tolist()
    assert np.concatenate([part[1] for part in parts]).tolist() == whole.tolist()
    assert whole.tolist() == Context(Behind(0, 1)).shard(x, epoch=epoch).tolist()


def test_lists_and_data_sets_are_shared_out_too() -> None:
    context = Context(Behind(1, 2))
    assert context.shard(["a", "b", "c", "d"]) == ["c", "d"]
    assert [int(row[0]) for row in context.shard(TensorDataset(torch.arange(4)))] == [2, 3]
    with pytest.raises(InvalidSpec, match="no length"):
        context.shard(iter([1]))


def test_a_state_of_plain_values_is_kept_and_anything_else_refused_by_its_place() -> None:
    assert checked_state({"a": [1, (2.0, "x")], "b": None}) == {"a": [1, (2.0, "x")], "b": None}
    with pytest.raises(InvalidSpec, match=r"state\['model'\]"):
        checked_state({"model": torch.nn.Linear(1, 1)})


@pytest.mark.parametrize("more", [{"model": object}, {"epochs": 2}, {"metrics": {"a": print}}, {"exact": False}])
def test_beside_a_loop_nothing_else_is_written(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec, match="not used with a custom loop"):
        Training(loop=print, **more)
    Training(loop=print, batch_size=8, seed=3)
    with pytest.raises(InvalidSpec, match="loop"):
        Training(loop="train")  # type: ignore[arg-type]
