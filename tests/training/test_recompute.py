"""Recomputation of groups of layers, or of a whole stage: same gradients, buffers and masks as in a single pass."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from fairlead.training.parallel import recompute
from fairlead.training.parallel.recompute import (
    Recompute,
    block_names,
    disable_recompute,
    enable_recompute,
    enable_stage_recompute,
    layer_lists,
    recompute_groups,
)
from fairlead.training.randomness import Layout, RandomUse, SampleDropout


def plain() -> Recompute:
    return Recompute(None, lambda: (), False)


def passes_of(model: nn.Module) -> tuple[int, int, torch.Tensor]:
    """How often its layers run for one step, how much is kept in between, and the gradient of its input."""
    runs, kept = 0, 0

    def ran(*_: object) -> None:
        nonlocal runs
        runs += 1

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    hooks = [each.register_forward_hook(ran) for each in model.modules() if isinstance(each, nn.Linear)]
    x = torch.linspace(-1, 1, 8 * 16).reshape(8, 16).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(x).square().sum()
    held = kept
    loss.backward()
    for hook in hooks:
        hook.remove()
    assert x.grad is not None
    return runs, held, x.grad


class Stage(nn.Module):
    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.inner = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.inner:
            x = each(x)
        return x


def layers(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [part for _ in range(count) for part in (nn.Linear(16, 16), nn.Tanh())]


def test_a_stage_without_blocks_is_computed_again_as_one() -> None:
    kept, again = Stage(layers(3)), Stage(layers(3))
    enable_stage_recompute(again, [], plain())
    usual, thrifty = passes_of(kept), passes_of(again)
    assert (usual[0], thrifty[0]) == (3, 6)
    assert thrifty[1] < usual[1]
    assert torch.equal(usual[2], thrifty[2])


@pytest.mark.parametrize("blocks", [["a"], ["a", "b"], ["elsewhere"]])
def test_of_a_stage_with_blocks_those_that_lie_in_it_are_computed_again(blocks: list[str]) -> None:
    stage = nn.Sequential()
    for name in ("a", "b", "c"):
        stage.add_module(name, nn.Sequential(*layers(2)))
    usual = passes_of(stage)
    enable_stage_recompute(stage, blocks, plain())
    thrifty = passes_of(stage)
    inside = [name for name in blocks if name != "elsewhere"]
    assert thrifty[0] == 6 + 2 * len(inside)
    assert thrifty[1] < usual[1] if inside else thrifty[1] == usual[1]
    assert torch.equal(usual[2], thrifty[2])


@pytest.mark.parametrize("count", [2, 4, 9])
def test_layers_in_a_row_are_forgotten_in_about_as_many_groups_as_each_has_layers(count: int) -> None:
    model = nn.Sequential(*layers(count))
    usual = passes_of(model)
    changed = enable_recompute(model, plain())
    thrifty = passes_of(model)
    ((_, found),) = recompute_groups(model)
    assert [name for group in found for name in group] == [str(at) for at in range(2 * count)], "each once, in order"
    assert abs(len(found) - (2 * count) ** 0.5) <= 1
    assert count < thrifty[0] <= 2 * count, "what comes behind the last that is needed is not computed again"
    assert thrifty[1] < usual[1]
    assert torch.equal(usual[2], thrifty[2])
    disable_recompute(changed)
    assert passes_of(model)[:2] == usual[:2]


def test_single_layers_go_with_the_block_before_them() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Sequential(*layers(1)), nn.Tanh(), nn.Sequential(*layers(1)), nn.Tanh())
    ((_, found),) = recompute_groups(model)
    assert found == [["0"], ["1", "2"], ["3", "4"]]
    assert block_names(model) == ["1", "3"]


# ---------------------------------------------------------------- as if there were one pass only


class Counting(nn.Module):
    """A layer with a buffer that every pass changes, as a running mean is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("passes", torch.zeros(1))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.passes += 1
        return self.layer(x)  # type: ignore[no-any-return]


def test_the_second_pass_leaves_buffers_as_the_first_one_left_them() -> None:
    stage = Stage([Counting(), nn.Tanh(), Counting(), nn.Tanh()])
    enable_stage_recompute(stage, [], Recompute(None, lambda: list(stage.buffers()), False))
    for step in (1, 2):
        stage(torch.ones(2, 16)).square().sum().backward()
        counting = [each for each in stage.inner if isinstance(each, Counting)]
        assert [each.calls for each in counting] == [2 * step] * 2, "it was computed again"
        assert [each.passes.item() for each in counting] == [step] * 2  # type: ignore[operator]


def test_without_gradients_nothing_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage([Counting()])
    enable_stage_recompute(stage, [], Recompute(None, lambda: list(stage.buffers()), False))
    monkeypatch.setattr(recompute, "checkpoint", None)
    with torch.no_grad():
        stage(torch.ones(2, 16))
    (counting,) = stage.inner
    assert counting.calls == 1 and counting.passes.item() == 1  # type: ignore[operator]


def gradient_with_dropout(recomputes: bool) -> torch.Tensor:
    """Of a model that draws from torch's own stream, which others draw from as well before the backward pass."""
    model = Stage([nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 1)])
    with torch.no_grad():
        for at, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.linspace(-1, 1 + at, parameter.numel()).reshape(parameter.shape))
    if recomputes:
        enable_stage_recompute(model, [], Recompute(None, lambda: (), True))
    torch.manual_seed(3)
    loss = model(torch.ones(4, 16)).sum()
    torch.rand(7)
    loss.backward()
    first = model.inner[0]
    assert isinstance(first, nn.Linear) and first.weight.grad is not None
    return first.weight.grad


def test_what_the_first_pass_drew_the_second_one_draws_again() -> None:
    assert torch.equal(gradient_with_dropout(False), gradient_with_dropout(True))


def gradient_with_sample_dropout(recomputes: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of a model whose masks follow its samples, and the mask that is drawn after its backward pass."""
    dropout = SampleDropout(RandomUse((Layout(0, 1), Layout(0, 1))))
    model = Stage([nn.Dropout(0.5), nn.Tanh()])
    if recomputes:
        enable_stage_recompute(model, [], Recompute(dropout, lambda: (), False))
    x = torch.linspace(-1, 1, 64).reshape(4, 16).requires_grad_()
    dropout.begin(5, 0, torch.arange(4))
    with dropout:
        loss = model(x).sum()
    dropout.begin(5, 1, torch.arange(4, 8))
    loss.backward()
    with dropout:
        after = nn.functional.dropout(torch.ones(4, 16), 0.5)
    assert x.grad is not None
    return x.grad, after


def test_masks_of_the_second_pass_are_those_of_its_own_samples_and_later_ones_are_not_moved() -> None:
    usual, thrifty = gradient_with_sample_dropout(False), gradient_with_sample_dropout(True)
    assert torch.equal(usual[0], thrifty[0]) and torch.equal(usual[1], thrifty[1])


# ---------------------------------------------------------------- what is put together


def test_of_a_list_of_modules_each_with_weights_is_a_group_of_its_own() -> None:
    model = Stage([nn.Linear(16, 16), nn.Tanh(), nn.Sequential(nn.Linear(16, 16), nn.Tanh()), nn.Identity()])
    ((container, found),) = recompute_groups(model)
    assert container is model.inner and found == [["0"], ["2"]]
    usual = passes_of(model)
    changed = enable_recompute(model, plain())
    assert [type(each) for each in changed] == [nn.Linear, nn.Sequential]
    thrifty = passes_of(model)
    assert thrifty[0] > usual[0] and torch.equal(thrifty[2], usual[2])
    disable_recompute(changed)
    assert passes_of(model)[:2] == usual[:2]


def test_a_single_layer_is_not_worth_computing_again() -> None:
    for model in (nn.Sequential(nn.Linear(16, 16)), nn.Sequential(nn.Sequential(nn.Linear(16, 16))), nn.Linear(16, 16)):
        assert recompute_groups(model) == [] and enable_recompute(model, plain()) == [] and block_names(model) == []


def test_lists_within_a_list_are_parts_of_it_and_others_are_found() -> None:
    model = nn.Module()
    model.first, model.second = nn.Sequential(*layers(2)), nn.ModuleDict({"deep": nn.ModuleList(layers(1))})
    assert [container for container, _ in recompute_groups(model)] == [model.first, model.second["deep"]]
    assert list(layer_lists(nn.Sequential(nn.Sequential(*layers(1))))) != list(layer_lists(nn.Linear(1, 1))) == []
