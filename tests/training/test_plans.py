"""Every exact plan gives the loss curve and the parameters of one process, and its state goes on under any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairlead import wire
from fairlead.errors import InvalidSpec
from fairlead.planning.plan import Plan, Split
from fairlead.training.parallel.model_skeleton import ModelSkeleton
from fairlead.training.parallel.pipeline import schedule_of, stages_of
from fairlead.training.parallel.pipeline_stages import trace_stages
from fairlead.training.parallel.recompute import recompute_groups
from fairlead.training.parallel.tensor_layers import ParameterSlice, cut_layer
from fairlead.training.snapshots.snapshotter import Snapshots
from tests.profiling.programs import Costly
from tests.training.conftest import MakeGang
from tests.training.gang import Gang
from tests.training.programs import BLOCKS, MIXED
from tests.training.test_exactness import assert_same_result

NAMES = ["w0", "w1", "w2", "w3"]
SILENCE_S = 150.0  # four workers that trace a model on a busy machine keep each other waiting
SPLITS = (
    ("embed", "vocabulary"),
    *((f"blocks.{place}.{name}", how) for place in (0, 1)
      for name, how in (("q", "column"), ("k", "column"), ("v", "column"), ("out", "row"), ("up", "column"),
                        ("down", "row"))),
    ("head", "column-gathered"),
)  # fmt: skip
PLANS = {
    "fsdp2": Plan(data=2, sync="allreduce", sharded=True),
    "uneven": Plan(data=3, sync="allreduce", sharded=True, shares=(0.6, 0.3, 0.1)),
    "tp2": Plan(tensor=2, splits=SPLITS),
    "dp2tp2": Plan(data=2, tensor=2, sync="allreduce", splits=SPLITS),
    "gpipe": Plan(pipeline=2, microbatches=3, schedule="gpipe", cuts=("blocks.1",)),
    "1f1b": Plan(pipeline=2, microbatches=4, schedule="1f1b", cuts=("blocks.0.up",)),
    "interleaved": Plan(
        pipeline=2, microbatches=4, schedule="interleaved", chunks=2, cuts=("blocks.0", "blocks.1", "head")
    ),
    "zero-bubble": Plan(pipeline=2, microbatches=4, schedule="zero-bubble", cuts=("blocks.1",)),
    "zero-bubble-v": Plan(
        pipeline=2, microbatches=4, schedule="zero-bubble", chunks=2, cuts=("blocks.0", "blocks.1", "head")
    ),
    "dp2pp2": Plan(
        data=2, sync="allreduce", pipeline=2, microbatches=2, schedule="1f1b", cuts=("blocks.1",), shares=(0.7, 0.3)
    ),
    "fsdp2pp2": Plan(
        data=2, sync="allreduce", sharded=True, pipeline=2, microbatches=2, schedule="1f1b", cuts=("blocks.1",)
    ),
    "recompute": Plan(recompute=True, microbatches=2),
    "fsdp2recompute": Plan(data=2, sync="allreduce", sharded=True, recompute=True, microbatches=2),
    "pp2recompute": Plan(pipeline=2, microbatches=4, schedule="1f1b", cuts=("blocks.1",), recompute=True),
    "fsdp2tp2": Plan(data=2, tensor=2, sync="allreduce", sharded=True, splits=SPLITS),
}

HALVES = (
    ("embed", "vocabulary"),
    *((f"layers.{place}.{name}", how) for place in (0, 1)
      for name, how in (("self_attn", "heads"), ("linear1", "column"), ("linear2", "row"))),
    ("attention", "heads"), ("convolutions.0", "column"), ("convolutions.4", "row"),
)  # fmt: skip
MIXED_PLANS = {
    "tp2": Plan(tensor=2, splits=HALVES, recompute=True),
    "pp2tp2": Plan(tensor=2, pipeline=2, microbatches=4, schedule="1f1b", cuts=("layers.1",), splits=HALVES),
}


def run(gang: Gang, plan: Plan | None = None) -> Gang:
    names = NAMES[: plan.workers_used if plan else 1]
    gang.start(*names)
    gang.ready(*names)
    gang.join(*names, plan=plan, silence_s=SILENCE_S)
    gang.finish()
    return gang


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Gang:
    gang = Gang(tmp_path_factory.mktemp("alone"), BLOCKS)
    try:
        return run(gang)
    finally:
        gang.close()


@pytest.fixture(scope="module")
def mixed_alone(tmp_path_factory: pytest.TempPathFactory) -> Gang:
    gang = Gang(tmp_path_factory.mktemp("mixed"), MIXED)
    try:
        return run(gang)
    finally:
        gang.close()


LONGER = {"epochs": 6}  # long enough to be told to leave on the way
LONG = {"epochs": 60}  # and again and again


@pytest.fixture(scope="module")
def longer_alone(tmp_path_factory: pytest.TempPathFactory) -> Gang:
    gang = Gang(tmp_path_factory.mktemp("longer"), BLOCKS, LONGER)
    try:
        return run(gang)
    finally:
        gang.close()


@pytest.fixture(scope="module")
def long_alone(tmp_path_factory: pytest.TempPathFactory) -> Gang:
    gang = Gang(tmp_path_factory.mktemp("long"), BLOCKS, LONG)
    try:
        return run(gang)
    finally:
        gang.close()


@pytest.mark.parametrize("name", ["recompute", "uneven"])
def test_a_plan_gives_the_result_of_one_process(make_gang: MakeGang, alone: Gang, name: str) -> None:
    assert_same_result(alone, run(make_gang(BLOCKS), PLANS[name]), 1e-9)


@pytest.mark.parametrize("workers", [2, 4])
def test_plans_one_after_the_other_give_the_result_of_one_process(
    make_gang: MakeGang, long_alone: Gang, workers: int
) -> None:
    """An epoch or more under each plan for so many workers, each from the state that the one before has handed over."""
    gang, names = make_gang(BLOCKS, LONG), NAMES[:workers]
    gang.start(*names)
    gang.ready(*names)
    for name, plan in PLANS.items():
        if plan.workers_used == workers:
            gang.join(*names, plan=plan, silence_s=SILENCE_S)
            begun = gang.workers["w0"].last(wire.Joined).step
            gang.reach(begun + 4)
            gang.leave()
            assert gang.workers["w0"].last(wire.Left).step >= begun + 4, name
    gang.join("w1")
    gang.finish()
    assert_same_result(long_alone, gang, 1e-9)


@pytest.mark.parametrize("name", MIXED_PLANS)
def test_attention_heads_and_convolutions_are_shared_by_ranks_also_within_stages(
    make_gang: MakeGang, mixed_alone: Gang, name: str
) -> None:
    assert_same_result(mixed_alone, run(make_gang(MIXED), MIXED_PLANS[name]), 1e-9)


def test_a_training_goes_on_under_another_plan_and_with_other_workers(make_gang: MakeGang, longer_alone: Gang) -> None:
    gang = make_gang(BLOCKS, LONGER | {"slow": 0.02})
    gang.start("w0", "w1", "w2")
    gang.ready("w0", "w1", "w2")
    gang.join("w0", "w1", plan=PLANS["fsdp2"])
    gang.reach(2)
    gang.leave()
    gang.join("w2", "w1", plan=PLANS["tp2"])
    gang.reach(gang.workers["w1"].last(wire.Joined).step + 1)
    gang.leave(snapshot=True)
    gang.finish()
    gang.start("w3")
    gang.ready("w3")
    gang.join("w3")
    assert gang.workers["w3"].last(wire.Joined).step >= 3
    gang.finish()
    assert_same_result(longer_alone, gang, 1e-9)


def test_who_lost_a_part_of_the_model_goes_on_from_the_snapshot(make_gang: MakeGang, alone: Gang) -> None:
    gang = make_gang(BLOCKS, {"slow": 0.1})
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.join("w0", "w1", plan=PLANS["fsdp2"])
    gang.reach(3)
    gang.kill("w1")
    gang.until(lambda: gang.said("w0", wire.Broken), "the survivor said Broken")
    gang.join("w0")
    assert gang.workers["w0"].last(wire.Joined).step <= gang.workers["w0"].last(wire.Broken).step
    gang.finish()
    assert_same_result(alone, gang, 1e-9)


def refusal(gang: Gang, plan: Plan, workers: int) -> str:
    names = NAMES[:workers]
    gang.start(*names)
    gang.ready(*names)
    gang.join(*names, plan=plan, wait=False)
    gang.until(lambda: all(gang.workers[name].code is not None for name in names), "everybody ended")
    said = {gang.workers[name].last(wire.Raised).error for name in names}
    assert len(said) == 1 and all(gang.workers[name].last(wire.Raised).permanent for name in names)
    return said.pop()


@pytest.mark.parametrize(
    ("plan", "workers", "words"),
    [
        (PLANS["dp2tp2"], 2, "dp2·tp2 is for 4 workers, this gang has 2"),
        (Plan(tensor=2, splits=(("blocks.0.first", "column"),)), 2, "blocks.0.first is a LayerNorm"),
        (
            Plan(pipeline=2, microbatches=2, schedule="zero-bubble", cuts=("blocks.1",), recompute=True),
            2,
            "walks a stage's graph twice",
        ),
        (Plan(tensor=2, splits=(("blocks.7.q", "column"),)), 2, "there is no layer blocks.7.q"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_by_everybody(
    make_gang: MakeGang, plan: Plan, workers: int, words: str
) -> None:
    assert words in refusal(make_gang(BLOCKS), plan, workers)


def test_a_snapshot_in_parts_goes_on_under_any_plan_and_with_any_number_of_workers(
    make_gang: MakeGang, longer_alone: Gang
) -> None:
    gang = make_gang(BLOCKS, LONGER | {"slow": 0.02, "parts": True})

    def go(plan: Plan | None, *names: str, **leave: Any) -> None:
        gang.join(*names, plan=plan, silence_s=SILENCE_S)
        gang.reach(gang.workers[names[0]].last(wire.Joined).step + 1)
        gang.leave(**leave)

    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    go(PLANS["fsdp2"], "w0", "w1")
    go(PLANS["tp2"], "w1", "w0")
    go(PLANS["1f1b"], "w0", "w1", snapshot=True)
    gang.finish()
    gang.start("w2", "w3", "w4")
    gang.ready("w2", "w3", "w4")
    go(PLANS["uneven"], "w2", "w3", "w4", exits=["w4"])
    go(None, "w3", "w2")
    assert {path.suffix for path in (gang.root / "snapshots").iterdir()} <= {".parts", ".pt"}
    gang.join("w2", "w3", plan=PLANS["fsdp2"])
    gang.finish()
    assert_same_result(longer_alone, gang, 1e-9)


@given(
    parts=st.integers(1, 3), blocks=st.integers(1, 3), each=st.integers(1, 4), data=st.integers(1, 3),
    dim=st.integers(0, 1),
)  # fmt: skip
def test_what_ranks_hold_lies_in_the_whole_where_they_say(
    parts: int, blocks: int, each: int, data: int, dim: int
) -> None:
    shape = [blocks * parts * each, 2] if dim == 0 else [2, blocks * parts * each]
    whole = torch.arange(float(shape[0] * shape[1])).view(shape)
    piece = ParameterSlice(whole.shape, parts, dim, blocks)
    for at in range(parts):
        own = piece.part(whole, at)
        rows = own.shape[dim]
        for start in range(0, rows, data):  # as another cut along the same dimension would hold them
            length = min(data, rows - start)
            for there, here, count in piece.runs(at, start, length):
                assert torch.equal(whole.narrow(dim, there, count), own.narrow(dim, here, count))
        assert sum(count for _, _, count in piece.runs(at, 0, rows)) == rows


def test_a_snapshot_that_lacks_a_part_is_not_taken(tmp_path: Path) -> None:
    store = Snapshots(tmp_path, tmp_path / "memory" / "job" / "n0", lambda *_: None)
    for step in (1, 2, 3):
        store.write_sharded(
            step, lambda folder: (folder / "0.distcp").write_bytes(b"part") and None,
            lambda file: file.write(b"place") and None,
        )  # fmt: skip
    found = store.find()
    assert [(stored.step, stored.path.suffix) for stored in found] == [(3, ".parts"), (2, ".parts")]
    (found[0].path / "0.distcp").write_bytes(b"par")
    assert [stored.read() for stored in found] == [None, b"place"]


def test_weights_used_on_both_sides_of_a_cut_and_untraceable_models_are_refused() -> None:
    plan = Plan(pipeline=2, microbatches=2, schedule="1f1b", cuts=("1",))
    tied = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    with pytest.raises(InvalidSpec, match="is used by stages 0 and 1"):
        trace_stages(tied, plan, [torch.zeros(2, 3)])

    class Branching(torch.nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self[1](self[0](x)) if bool(x.sum() > 0) else self[0](x)

    with pytest.raises(InvalidSpec, match="more than one value per row"):
        trace_stages(Costly(), Plan(pipeline=2, microbatches=2, schedule="1f1b", cuts=("out",)), [torch.randn(4, 16)])
    with pytest.raises(InvalidSpec, match="cannot be traced"):
        trace_stages(Branching(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)), plan, [torch.zeros(2, 3)])


def test_a_schedule_wants_its_number_of_stages_per_worker() -> None:
    with pytest.raises(InvalidSpec, match="does not support 1 stages per worker"):
        schedule_of(Plan(pipeline=2, microbatches=2, schedule="interleaved", cuts=("1",)))
    four = Plan(pipeline=2, microbatches=2, schedule="zero-bubble", chunks=2, cuts=("1", "2", "3"))
    assert [stages_of(four, worker) for worker in (0, 1)] == [(0, 3), (1, 2)]


class Two:
    """A tensor group of two as its first rank sees it."""

    rank, size, device = 0, 2, torch.device("cpu")

    def sum(self, tensor: torch.Tensor) -> None:
        raise AssertionError("nothing is computed")

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        raise AssertionError("nothing is computed")


@pytest.mark.parametrize(
    ("module", "how", "words"),
    [
        (torch.nn.Conv2d(2, 2, 1, groups=2), "column", "with groups"),
        (torch.nn.Conv2d(3, 3, 1), "row", "not divisible by 2 ranks"),
        (torch.nn.BatchNorm1d(2), "column", "which cannot be cut so"),
        (torch.nn.Embedding(4, 2, max_norm=1.0), "vocabulary", "needs all of its rows"),
        (torch.nn.MultiheadAttention(4, 2, kdim=3), "heads", "a width of their own"),
    ],
)
def test_a_layer_that_cannot_be_shared_is_refused_with_the_reason(
    module: torch.nn.Module, how: Split, words: str
) -> None:
    with pytest.raises(InvalidSpec, match=words):
        cut_layer("layer", module, how, Two())


def test_parts_of_packed_queries_keys_and_values_become_the_whole_again() -> None:
    whole = torch.arange(24.0).view(12, 2)
    piece = ParameterSlice(whole.shape, parts=2, blocks=3)
    assert piece.part(whole, 1)[:, 0].tolist() == [4.0, 6.0, 12.0, 14.0, 20.0, 22.0]
    assert torch.equal(piece.join([piece.part(whole, at) for at in range(2)]), whole)


def test_single_layers_are_computed_again_in_groups_and_blocks_one_by_one() -> None:
    flat = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(9)))
    assert [len(group) for _, found in recompute_groups(flat) for group in found] == [3, 3, 3]
    inner = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()) for _ in range(2)]
    blocks = torch.nn.Sequential(torch.nn.Linear(2, 2), inner[0], torch.nn.ReLU(), inner[1])
    assert [group for _, found in recompute_groups(blocks) for group in found] == [["0"], ["1", "2"], ["3"]]
    assert recompute_groups(torch.nn.Linear(2, 2)) == []


def test_a_skeleton_keeps_ties_and_what_no_state_holds() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model[1].weight = model[0].weight
    model.register_buffer("place", torch.arange(3.0), persistent=False)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rebuilt = ModelSkeleton(model).rebuild(torch.device("cpu"))
    rebuilt.load_state_dict(state)
    assert rebuilt[1].weight is rebuilt[0].weight is not model[0].weight
    assert torch.equal(rebuilt.place, model.place)
    assert all(torch.equal(rebuilt.state_dict()[name], tensor) for name, tensor in state.items())
