"""Layers that are cut over ranks do what the whole layer does, forward and backward; what cannot be cut is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fairlead.errors import InvalidSpec
from fairlead.training.group import Group
from fairlead.training.parallel.batch_norm import SyncedBatchNorms
from fairlead.training.parallel.tensor_collectives import collectives_of, enable_collectives, insert_collectives
from fairlead.training.parallel.tensor_layers import ParameterSlice, cut_layer, slices_of
from tests.training.ranks import together

RANKS = 2


def near(one: Any, other: Any) -> bool:
    return torch.allclose(one, other, 1e-10, 1e-12)


def tokens() -> torch.Tensor:
    return torch.tensor([[0, 1, 7], [5, 4, 3], [5, 1, 6]])


LINEAR = nn.Linear(6, 4)
WAYS = {
    "column": (LINEAR, "column", torch.randn(5, 6), None, -1),
    "column-gathered": (LINEAR, "column-gathered", torch.randn(5, 6), None, None),
    "row": (LINEAR, "row", torch.randn(3, 5, 6), -1, None),
    "row without bias": (nn.Linear(6, 4, bias=False), "row", torch.randn(5, 6), -1, None),
    "channels out": (nn.Conv2d(4, 6, 3, padding=1), "column", torch.randn(2, 4, 5, 5), None, 1),
    "channels in": (nn.Conv2d(4, 6, 3, stride=2), "row", torch.randn(2, 4, 5, 5), 1, None),
    "channels in, one dimension": (nn.Conv1d(4, 6, 3), "row", torch.randn(2, 4, 7), 1, None),
    "channels in, no bias": (nn.Conv1d(4, 6, 3, bias=False), "row", torch.randn(2, 4, 7), 1, None),
    "rows of words": (nn.Embedding(8, 6), "vocabulary", tokens(), None, None),
    "rows of words, one for padding": (nn.Embedding(8, 6, padding_idx=5), "vocabulary", tokens(), None, None),
    "columns of words": (nn.Embedding(8, 6, padding_idx=1), "column-gathered", tokens(), None, None),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_that_is_cut_does_what_the_whole_one_does(way: str, tmp_path: Path) -> None:
    layer, how, x, into, out_of = WAYS[way]
    whole = copy.deepcopy(layer).double()
    x = x.double() if x.is_floating_point() else x
    given_x = x.clone().requires_grad_(x.is_floating_point())
    expected = whole(given_x)
    weigh = torch.randn_like(expected)
    (expected * weigh).sum().backward()

    def work(group: Group) -> None:
        own = copy.deepcopy(layer).double()
        cut_layer("layer", own, how, group)
        enable_collectives(own)

        def part(tensor: torch.Tensor, dim: int | None) -> torch.Tensor:
            return tensor if dim is None else tensor.chunk(RANKS, dim)[group.rank]

        mine = part(x, into).clone().requires_grad_(x.is_floating_point())
        found = own(mine)
        assert near(found, part(expected, out_of))
        (found * part(weigh, out_of)).sum().backward()
        if given_x.grad is not None:
            assert mine.grad is not None and near(mine.grad, part(given_x.grad, into))
        pieces = slices_of(own)
        assert set(pieces) <= {name for name, _ in own.named_parameters()} and "weight" in pieces
        for name, parameter in own.named_parameters():
            gradient = whole.get_parameter(name).grad
            assert gradient is not None and parameter.grad is not None
            piece = pieces.get(name)
            assert near(parameter.grad, gradient if piece is None else piece.part(gradient, group.rank)), name
            if piece is not None:
                assert parameter.numel() * RANKS == gradient.numel() and piece.shape == gradient.shape

    together(tmp_path, RANKS, work)


MASKS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no weights": {"need_weights": False},
    "weights of every head": {"average_attn_weights": False},
    "a mask": {"attn_mask": torch.ones(3, 3).triu(1).bool()},
    "a mask to be added": {"attn_mask": torch.randn(3, 3).double(), "need_weights": False},
    "a mask for every head": {"attn_mask": torch.randn(2 * 4, 3, 3).double()},
    "padding": {"key_padding_mask": torch.tensor([[False, False, True], [False, False, False]])},
    "both": {
        "attn_mask": torch.ones(3, 3).triu(1).bool(), "need_weights": False,
        "key_padding_mask": torch.tensor([[False, False, True], [False, False, False]]),
    },
}  # fmt: skip


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("form", ["itself", "another", "three", "rows first, no bias"])
def test_heads_that_ranks_share_are_the_heads_of_the_whole(masks: str, form: str, tmp_path: Path) -> None:
    first = form != "rows first, no bias"
    layer = nn.MultiheadAttention(8, 4, batch_first=first, bias=first).double()
    if first:
        nn.init.normal_(layer.in_proj_bias)
        nn.init.normal_(layer.out_proj.bias)
    x, y, z = torch.randn(3, *((2, 3, 8) if first else (3, 2, 8)), dtype=torch.float64).unbind(0)
    inputs = {"itself": (x, x, x), "another": (x, y, y), "three": (x, y, z)}.get(form, (x, x, x))
    whole = copy.deepcopy(layer)
    expected, weights = whole(*inputs, **MASKS[masks])
    weigh = torch.randn_like(expected)
    ((expected * weigh).sum() + (0 if weights is None else (weights**2).sum())).backward()

    def work(group: Group) -> None:
        own = copy.deepcopy(layer)
        cut_layer("attention", own, "heads", group)
        enable_collectives(own)
        found, told = own(*inputs, **MASKS[masks])
        assert near(found, expected)
        assert (told is None) == (weights is None) and (weights is None or near(told, weights))
        ((found * weigh).sum() + (0 if told is None else (told**2).sum())).backward()
        for name, piece in slices_of(own).items():
            gradient, other = whole.get_parameter(name).grad, own.get_parameter(name).grad
            assert gradient is not None and other is not None and near(other, piece.part(gradient, group.rank)), name

    together(tmp_path, RANKS, work)


def test_attention_drops_out_in_training_only(tmp_path: Path) -> None:
    layer = nn.MultiheadAttention(8, 4, dropout=0.999, batch_first=True)
    nn.init.zeros_(layer.out_proj.bias)
    x = torch.randn(2, 3, 8)

    def work(group: Group) -> list[float]:
        own = copy.deepcopy(layer)
        cut_layer("attention", own, "heads", group)
        enable_collectives(own)
        sums = []
        for training in (True, False):
            own.train(training)
            for need_weights in (True, False):
                sums.append(own(x, x, x, need_weights=need_weights)[0].detach().abs().sum().item())
        return sums

    for dropped, dropped_too, kept, kept_too in together(tmp_path, RANKS, work):
        assert kept == pytest.approx(kept_too, rel=1e-4) and dropped != kept and dropped_too != kept


@pytest.mark.parametrize(
    ("layer", "how", "words"),
    [
        (nn.LayerNorm(4), "column", "cannot be cut so"), (nn.Linear(4, 4), "vocabulary", "cannot be cut so"),
        (nn.Conv1d(4, 4, 3, groups=2), "column", "groups or transposed"),
        (nn.ConvTranspose1d(4, 4, 3), "row", "groups or transposed"),
        (nn.Embedding(8, 4, max_norm=1.0), "vocabulary", "needs all"),
        (nn.Embedding(8, 4, scale_grad_by_freq=True), "vocabulary", "needs all"),
        (nn.MultiheadAttention(8, 4, kdim=6), "heads", "width of their own"),
        (nn.MultiheadAttention(8, 4, add_bias_kv=True), "heads", "rows added"),
        (nn.MultiheadAttention(8, 4, add_zero_attn=True), "heads", "rows added"),
        (nn.Linear(4, 5), "column", "5 rows or columns, not divisible by 2 ranks"),
        (nn.MultiheadAttention(9, 3), "heads", "9 rows or columns"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused(layer: nn.Module, how: Any, words: str, tmp_path: Path) -> None:
    def work(group: Group) -> str:
        with pytest.raises(InvalidSpec) as refused:
            cut_layer("some.layer", copy.deepcopy(layer), how, group)
        return str(refused.value)

    for said in together(tmp_path, RANKS, work):
        assert words in said and "some.layer" in said


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.data())
def test_a_part_lies_in_the_whole_where_it_says(blocks: int, parts: int, each: int, data: st.DataObject) -> None:
    rows = blocks * parts * each
    dim = data.draw(st.integers(0, 1))
    whole = torch.arange(2 * rows).reshape((rows, 2) if dim == 0 else (2, rows))
    piece = ParameterSlice(whole.shape, parts, dim, blocks)
    held = [piece.part(whole, at) for at in range(parts)]
    assert torch.equal(piece.join(held), whole)
    at = data.draw(st.integers(0, parts - 1))
    start = data.draw(st.integers(0, blocks * each))
    length = data.draw(st.integers(0, blocks * each - start))
    covered = []
    for there, here, count in piece.runs(at, start, length):
        assert count > 0
        assert torch.equal(whole.narrow(dim, there, count), held[at].narrow(dim, here, count))
        covered += range(here, here + count)
    assert covered == list(range(start, start + length))


def test_seams_are_silent_until_they_are_closed_and_are_put_into_stages_by_name(tmp_path: Path) -> None:
    def work(group: Group) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        for name, how in (("0", "column-gathered"), ("1", "row")):
            cut_layer(name, model.get_submodule(name), how, group)  # type: ignore[arg-type]
        found = collectives_of(model)
        assert set(found) == {"0.enter", "0.gather", "1.sum"} and not any(seam.enabled for seam in found.values())
        x = torch.ones(1, 2)
        assert found["0.gather"](x).shape == (1, 2 * RANKS) and torch.equal(found["1.sum"](x), x)
        stage = nn.Module()
        stage.add_module("1", nn.Module())
        stage.get_submodule("1").add_module("sum@1", nn.Identity())
        stage.add_module("other", nn.Identity())
        insert_collectives(stage, found)
        assert stage.get_submodule("1.sum@1") is found["1.sum"] and found["1.sum"].enabled
        assert not found["0.enter"].enabled
        assert torch.equal(found["1.sum"](x), RANKS * x) and torch.equal(x, torch.ones(1, 2))

    together(tmp_path, RANKS, work)


# ---------------------------------------------------------------- batch norm


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm1d(3), (3,)), (nn.BatchNorm2d(3, eps=0.1), (3, 2, 2)), (nn.BatchNorm1d(3, affine=False), (3,)),
        (nn.BatchNorm1d(3, momentum=None), (3,)), (nn.BatchNorm1d(3, track_running_stats=False), (3, 4)),
        (nn.BatchNorm1d(3, momentum=0.7), (3,)),
    ],
    ids=str,
)  # fmt: skip
def test_batch_norm_over_ranks_is_that_of_the_whole_batch(
    layer: nn.Module, shape: tuple[int, ...], tmp_path: Path
) -> None:
    counts, batches = (2, 5), torch.randn(2, 7, *shape, dtype=torch.float64) * 3 + 1
    whole = nn.Sequential(copy.deepcopy(layer).double())
    weigh = torch.randn(7, *shape, dtype=torch.float64)
    inputs = [batch.clone().requires_grad_() for batch in batches]
    outputs = [whole(batch) for batch in inputs]
    sum((out * weigh).sum() for out in outputs).backward()  # type: ignore[union-attr]

    def work(group: Group) -> dict[str, torch.Tensor]:
        model = nn.Sequential(copy.deepcopy(layer).double())
        norms = SyncedBatchNorms(model, group)
        assert len(norms) == 1
        start = sum(counts[: group.rank])
        rows = slice(start, start + counts[group.rank])
        for batch, there, expected in zip(batches, inputs, outputs, strict=True):
            mine = batch[rows].clone().requires_grad_()
            found = model(mine)
            assert near(found, expected[rows])
            (found * weigh[rows]).sum().backward()
            assert mine.grad is not None and there.grad is not None and near(mine.grad, there.grad[rows])
        for name, buffer in whole.named_buffers():
            assert torch.allclose(model.get_buffer(name).double(), buffer.double()), name
        model.eval()
        whole.eval()
        assert near(model(batches[0]), whole(batches[0]))
        norms.restore()
        assert len(norms) == 0 and "forward" not in vars(model[0])
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    own = together(tmp_path, RANKS, work)
    for name, parameter in whole.named_parameters():
        assert parameter.grad is not None and near(sum(grads[name] for grads in own), parameter.grad)


def test_a_worker_without_samples_keeps_the_others_company_and_changes_nothing(tmp_path: Path) -> None:
    whole, batch = nn.BatchNorm1d(3).double(), torch.randn(4, 3, dtype=torch.float64)
    x = batch.clone().requires_grad_()
    expected = whole(x)
    (expected**3).sum().backward()

    def work(group: Group) -> None:
        own = nn.BatchNorm1d(3).double()
        norms = SyncedBatchNorms(own, group)
        norms.weight = 1.0 - group.rank
        mine = (batch if group.rank == 0 else torch.ones(1, 3, dtype=torch.float64)).clone().requires_grad_()
        found = own(mine)
        ((found**3).sum() * norms.weight).backward()
        for name, buffer in whole.named_buffers():
            assert torch.allclose(own.get_buffer(name).double(), buffer.double())
        if group.rank == 0:
            assert near(found, expected) and mine.grad is not None and x.grad is not None and near(mine.grad, x.grad)

    together(tmp_path, RANKS, work)


def test_batch_norm_on_one_value_of_a_channel_is_refused_as_in_one_process(tmp_path: Path) -> None:
    def work(group: Group) -> None:
        model = nn.BatchNorm1d(3)
        norms = SyncedBatchNorms(model, group)
        norms.weight = 1.0 - group.rank
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            model(torch.ones(1, 3))

    together(tmp_path, RANKS, work)


def test_only_batch_norms_of_several_workers_that_want_it_are_changed(tmp_path: Path) -> None:
    def work(group: Group) -> int:
        model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2), nn.BatchNorm2d(2))
        assert len(SyncedBatchNorms(model, group, on=False)) == 0
        return len(SyncedBatchNorms(model, group))

    assert together(tmp_path, 1, work) == [0] and together(tmp_path, 2, work) == [2, 2]
