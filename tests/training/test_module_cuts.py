"""Which modules are cut and where, and what is refused before anything is: models, plans and trainings as values."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.distributed.pipelining import Pipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

import fairlead
from fairlead.errors import InvalidSpec
from fairlead.planning.plan import HEADS, Plan
from fairlead.training.batch_ranges import pass_ranges, rank_range
from fairlead.training.parallel.mesh import MeshAxis
from fairlead.training.parallel.module_cuts import _count_heads, _style, blocks, split
from fairlead.training.parallel.pipeline_stages import contiguous_outputs, trace_stages
from fairlead.training.parallel.sharded_parameters import (
    Shard,
    fill_optimizer,
    make_shards,
    optimizer_parts,
    whole_tensors,
)
from fairlead.training.parallel.tensor_layers import ParameterSlice
from fairlead.training.snapshots.sharded_files import CheckpointPart, TensorBox, checkpoint_part
from fairlead.training.straggler_log import StragglerWatch, own_s
from tests.training.ranks import together


class Block(nn.Module):
    def __init__(self, tied: nn.Parameter | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        if tied is not None:
            self.layer.weight = tied

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


def test_blocks_are_the_elements_of_the_outermost_lists_that_share_no_weight() -> None:
    shared = nn.Parameter(torch.ones(2, 2))
    model = nn.Module()
    model.body = nn.ModuleList([Block(), Block(shared), nn.ReLU(), nn.ModuleList([Block()]), Block()])
    model.head = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    model.other = Block(shared)
    found = list(blocks(model))
    assert found == [model.body[0], model.body[4], model.head[0], model.head[1]]
    assert list(blocks(nn.Linear(2, 2))) == []


@pytest.mark.parametrize(
    ("layer", "how", "style"),
    [
        (nn.Linear(2, 2), "column", ColwiseParallel), (nn.Linear(2, 2), "row", RowwiseParallel),
        (nn.Linear(2, 2), "column-gathered", ColwiseParallel), (nn.Embedding(2, 2), "column-gathered", ColwiseParallel),
        (nn.Embedding(2, 2), "vocabulary", RowwiseParallel), (nn.Linear(2, 2), "vocabulary", None),
        (nn.Embedding(2, 2), "row", None), (nn.Embedding(2, 2), "column", None), (nn.Conv1d(2, 2, 1), "column", None),
        (nn.Conv1d(2, 2, 1), "row", None), (nn.Conv1d(2, 2, 1), "column-gathered", None),
        (nn.MultiheadAttention(2, 1), "heads", None),
    ],
)  # fmt: skip
def test_torch_cuts_linear_layers_and_embeddings(layer: nn.Module, how: Any, style: type | None) -> None:
    found = _style(layer, how)
    assert (found is None) if style is None else type(found) is style
    if style is not None and how == "column-gathered":
        assert found.output_layouts[0].is_replicate()  # type: ignore[union-attr]
    elif style is ColwiseParallel:
        assert found.output_layouts[0].is_shard()  # type: ignore[union-attr]
    if how == "vocabulary" and style is not None:
        assert found.input_layouts[0].is_replicate()  # type: ignore[union-attr]


def test_heads_are_counted_as_those_of_one_rank() -> None:
    module = nn.Module()
    for name in HEADS:
        setattr(module, name, 6)
    module.dim = 8
    _count_heads("attention", module, 3)
    assert all(getattr(module, name) == 2 for name in HEADS) and module.dim == 8
    for odd in (SimpleNamespace(), SimpleNamespace(**{HEADS[0]: 7}), SimpleNamespace(**{HEADS[0]: 6, HEADS[1]: 7})):
        with pytest.raises(InvalidSpec, match="attention has no number of heads that 3 ranks can share"):
            _count_heads("attention", odd, 3)  # type: ignore[arg-type]


def mesh(*splits: tuple[str, str]) -> Any:
    side = SimpleNamespace(rank=1, size=2, device=torch.device("cpu"))
    return SimpleNamespace(axis=lambda name: side, plan=SimpleNamespace(splits=splits), grid={"tensor": None})


def test_a_traced_model_is_cut_by_layers_of_ours_that_stay_silent() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4), nn.MultiheadAttention(4, 2))
    before = model[0].weight.detach().clone()
    split(model, mesh(("0", "column"), ("1", "row"), ("2", "heads")), traced=True)
    assert torch.equal(model[0].weight, before[3:]) and model[1].weight.shape == (4, 3)
    assert model[2].in_proj_weight.shape == (6, 4)
    assert not any(module.enabled for module in model.modules() if hasattr(module, "enabled"))


@pytest.mark.parametrize(
    ("name", "how", "words"),
    [("9", "column", "there is no layer 9"), ("0", "row", "0 shares its weight"), ("1", "heads", "no number of heads")],
)
def test_what_cannot_be_cut_is_refused_by_its_name(name: str, how: str, words: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    with pytest.raises(InvalidSpec, match=words):
        split(model, mesh((name, how)), traced=True)


# ---------------------------------------------------------------- parts of parameters


def test_a_rank_without_parts_holds_wholes() -> None:
    model = nn.Linear(2, 3)
    model.bias.requires_grad_(False)
    found = make_shards(model.named_parameters())
    assert [(each.name, each.whole is each.local) for each in found] == [("weight", True), ("bias", True)]
    model(torch.ones(1, 2)).sum().backward()
    for each in found:
        each.take_gradient()
    assert found[0].local.grad is not None and found[1].local.grad is None
    found[0].clear_gradient()
    assert model.weight.grad is None
    tensor = torch.ones(3, 2)
    assert found[0].gather_whole(tensor) is tensor and found[0].own_part(tensor) is tensor
    assert checkpoint_part(found[0], tensor).equal(tensor) and not isinstance(
        checkpoint_part(found[0], tensor), CheckpointPart
    )


def test_state_of_the_optimizer_becomes_whole_and_parts_again(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(4, 3)
    piece = ParameterSlice(whole.shape, 2, 0, 2)

    def work(group: Any) -> None:
        own = nn.Parameter(piece.part(whole, group.rank).clone())
        shard = Shard("w", own, own, piece, group)
        assert torch.equal(shard.gather_whole(own.detach()), whole) and torch.equal(shard.own_part(whole), own)
        assert shard.gather_whole(torch.tensor(7.0)).item() == 7.0 and shard.own_part(torch.tensor(7.0)).item() == 7.0
        optimizer = torch.optim.Adam([own], lr=0.1)
        own.grad = torch.ones_like(own) * (group.rank + 1)
        optimizer.step()
        states = optimizer_parts(optimizer, [shard])
        assert states["w"]["exp_avg"].shape == whole.shape and states["w"]["step"].item() == 1
        assert torch.equal(piece.part(states["w"]["exp_avg"], group.rank), optimizer.state[own]["exp_avg"])
        other = torch.optim.Adam([own], lr=0.1)
        fill_optimizer(other, [shard], {"w": states["w"] | {"note": "x"}, "v": {}})
        assert torch.equal(other.state[own]["exp_avg"], optimizer.state[own]["exp_avg"])
        assert other.state[own]["note"] == "x"
        fill_optimizer(other, [Shard("v", own, own)], {"v": {}})
        assert other.state[own], "nothing is known of it"
        model = nn.Module()
        model.w, model.b = own, nn.Parameter(torch.ones(2))
        found = whole_tensors(model, {"w": piece}, group)
        assert torch.equal(found["w"], piece.join([piece.part(found["w"], at) for at in (0, 1)]))
        assert found["w"].shape == whole.shape and torch.equal(found["b"], torch.ones(2))
        copies = SimpleNamespace(plan=Plan(data=3, tensor=2, sync="allreduce", splits=(("w", "column"),)))
        assert shard.copy_count(copies) == 3 and Shard("b", model.b, model.b).copy_count(copies) == 6

    together(tmp_path, 2, work)


def test_a_part_says_in_which_boxes_of_the_whole_it_lies() -> None:
    """Queries, keys and values of a rank are three boxes of one parameter."""
    whole = torch.arange(24.0).reshape(12, 2)
    piece = ParameterSlice(whole.shape, 2, 0, 3)
    for rank in (0, 1):
        own = nn.Parameter(piece.part(whole, rank).clone())
        side: Any = SimpleNamespace(rank=rank, size=2)
        found = checkpoint_part(Shard("w", own, own, piece, side), own)
        assert isinstance(found, CheckpointPart) and found.size() == whole.shape and found.size(1) == 2
        assert [box.offset for box in found.boxes] == [(2 * rank, 0), (4 + 2 * rank, 0), (8 + 2 * rank, 0)]
        assert all(box.size == (2, 2) for box in found.boxes)
        assert [box.own for box in found.boxes] == [(0, 0), (2, 0), (4, 0)]
        items = found.__create_write_items__("model/w", None)
        assert [tuple(item.index.offset) for item in items] == [box.offset for box in found.boxes]
        for item, box in zip(items, found.boxes, strict=True):
            held = found.__get_tensor_shard__(item.index)
            assert held.equal(whole[box.offset[0] : box.offset[0] + 2])
            assert item.tensor_data.size == whole.shape and tuple(item.tensor_data.chunk.sizes) == box.size
    assert TensorBox((0,), (1,), (0,)) == TensorBox((0,), (1,), (0,))


# ---------------------------------------------------------------- stages


class Two(nn.Module):
    def __init__(self, drop: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.drops = nn.Dropout(0.5) if drop else nn.Identity()
        self.also = nn.Dropout(0.5) if drop else nn.Identity()

    def forward(self, x: torch.Tensor) -> Any:
        return {"out": self.also(self.second(self.drops(self.first(x))))}


TWO_STAGES = Plan(pipeline=2, microbatches=2, schedule="gpipe", cuts=("second",))


def test_a_model_in_stages_gives_what_it_gave_and_each_knows_its_first_mask() -> None:
    model = Two(drop=True)
    found = trace_stages(model, TWO_STAGES, [torch.randn(4, 3)])
    assert isinstance(found.pipe, Pipe) and found.pipe.num_stages == 2 and found.first_masks == (0, 1)
    assert found.output.num_leaves == 1
    model.eval()


@pytest.mark.parametrize(
    ("model", "plan", "inputs", "words"),
    [
        (Two(), msgspec.structs.replace(TWO_STAGES, cuts=("no",)), [torch.ones(4, 3)], "be traced|has 1 stages"),
        (nn.Sequential(nn.Linear(3, 3), nn.Flatten(0)), TWO_STAGES, [torch.ones(4, 3)], "more than one value per row"),
    ],
)  # fmt: skip
def test_what_is_no_row_of_stages_is_refused(
    model: nn.Module, plan: Plan, inputs: list[torch.Tensor], words: str
) -> None:
    with pytest.raises(InvalidSpec, match=words):
        trace_stages(model, plan, inputs)


def test_what_a_stage_hands_on_is_contiguous_and_as_wide_as_it_was_announced() -> None:
    crooked, half = torch.randn(3, 2).t(), torch.ones(2, dtype=torch.bfloat16)
    one, other, same = contiguous_outputs((crooked, half, "x"))
    assert one.is_contiguous() and torch.equal(one, crooked) and other.dtype == torch.bfloat16 and same == "x"
    assert contiguous_outputs(half, widened=True).dtype == torch.float32
    assert contiguous_outputs(torch.ones(2, dtype=torch.float64), widened=True).dtype == torch.float64


# ---------------------------------------------------------------- who takes what, and how long it takes


def test_passes_over_the_same_samples_leave_out_those_over_none() -> None:
    assert pass_ranges(5, 2, (0.6, 0.4), 0, together=False) == [range(0, 2), range(2, 3)]
    assert pass_ranges(5, 2, (0.6, 0.4), 1, together=False) == [range(3, 4), range(4, 5)]
    assert pass_ranges(5, 2, (0.5, 0.5), 1, together=True) == [range(1, 2), range(4, 5)]
    assert pass_ranges(1, 3, (1.0,), 0, together=True) == [range(0, 1)]
    assert [len(each) for each in pass_ranges(1, 3, (1.0,), 0, together=False)].count(0) == 2
    assert rank_range(10, (1.0, 3.0), 1) == range(2, 10) and rank_range(0, (1.0, 1.0), 1) == range(0, 0)


def test_the_time_of_a_thread_is_that_in_which_it_wanted_a_core() -> None:
    found: list[float] = []

    def wait() -> None:
        before = own_s()
        threading.Event().wait(0.2)
        slept = own_s() - before
        total = 0
        while own_s() - before - slept < 0.05:
            total += 1
        found.extend((slept, own_s() - before))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert 0 <= found[0] < 0.15 and found[1] >= 0.05


def test_who_falls_behind_is_told_once_until_it_has_caught_up(capsys: pytest.CaptureFixture[str]) -> None:
    told = iter([None, (0,), (1,), (1,), (), (1,)])

    def record_step(_: Any) -> Any:
        late = next(told)
        return None if late is None else SimpleNamespace(stragglers=late, compute_s=(0.1, 0.5))

    watch = StragglerWatch(SimpleNamespace(record_step=record_step), 1)  # type: ignore[arg-type]
    said = []
    for _ in range(6):
        watch.record_step((0.1, 0.5))
        said.append("this worker is a straggler: 500.0 ms per step (others 100.0 ms)" in capsys.readouterr().out)
    assert said == [False, False, True, False, False, True]


def test_a_side_of_one_rank_talks_to_nobody() -> None:
    side = object.__new__(MeshAxis)
    side._group, side.device, side.rank, side.size = None, torch.device("cpu"), 0, 1
    tensor = torch.ones(2)
    side.sum(tensor)
    assert tensor.tolist() == [1.0, 1.0] and side.gather(tensor).tolist() == [[1.0, 1.0]]


# ---------------------------------------------------------------- what is written down to be trained


class Stepping(nn.Linear):
    def training_step(self, batch: Any, place: int) -> torch.Tensor:
        return self(batch[0]).sum()


COMMON: dict[str, Any] = {"data": (torch.ones(4, 3), torch.ones(4)), "batch_size": 2, "epochs": 1}


def test_only_a_model_with_a_step_of_its_own_needs_no_loss() -> None:
    fairlead.Training(model=Stepping(3, 1), **COMMON)
    fairlead.Training(model=lambda: Stepping(3, 1), **COMMON)
    for model, loss in ((nn.Linear(3, 1), None), (Stepping(3, 1), "mse"), (lambda: None, 7)):
        with pytest.raises(InvalidSpec) as refused:
            fairlead.Training(model=model, loss=loss, **COMMON)
        assert refused.value.field == "loss"


@pytest.mark.parametrize("name", ["batch_size", "epochs"])
def test_how_much_is_trained_has_to_be_said(name: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        fairlead.Training(model=Stepping(3, 1), **{key: value for key, value in COMMON.items() if key != name})
    assert refused.value.field == name


def test_a_training_means_what_it_always_did_where_nothing_is_said() -> None:
    usual = fairlead.Training(model=Stepping(3, 1), **COMMON)
    assert (usual.seed, usual.accumulate, usual.scheduler_every, usual.keep_best, usual.monitor) == (
        0, 1, "epoch", False, "eval_loss"
    )  # fmt: skip
    assert (usual.monitor_mode, usual.sharded_snapshots, usual.precision, usual.exact, usual.plan) == (
        "min", None, "auto", True, "auto"
    )  # fmt: skip
    assert not usual.compares_epochs and usual.clip_grad_norm is None and usual.early_stopping is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((torch.ones(4, 3),), "has no target"), ((torch.ones(4, 3), torch.ones(3)), "different lengths"),
        ((torch.ones(0, 3), torch.ones(0)), "is empty"), ((torch.ones(4), 7), "not a tensor or array"),
        ({"a": 1}, "is not data"), ([], "has no target"),
        (torch.utils.data.TensorDataset(torch.ones(0, 2)), "is empty"),
        (7, "is not data"),
    ],
)  # fmt: skip
def test_data_are_columns_of_the_same_length_with_a_target(data: Any, words: str) -> None:
    for name in ("data", "eval_data"):
        with pytest.raises(InvalidSpec, match=words) as refused:
            fairlead.Training(model=Stepping(3, 1), **(COMMON | {name: data}))
        assert str(refused.value.field).startswith(name)


def test_a_loop_keeps_all_to_itself_but_batch_size_seed_and_plan() -> None:
    fairlead.Training(loop=print, batch_size=3, seed=4, plan="auto")
    for more in ({"epochs": 2}, {"exact": False}, {"metrics": {"a": print}}, {"model": Stepping(3, 1)}):
        with pytest.raises(InvalidSpec, match="not used with a custom loop"):
            fairlead.Training(loop=print, **more)
    for wrong in ({"batch_size": -1}, {"seed": 1.5}):
        with pytest.raises(InvalidSpec):
            fairlead.Training(loop=print, **wrong)
    with pytest.raises(InvalidSpec, match="cannot be called"):
        fairlead.Training(loop=7)
