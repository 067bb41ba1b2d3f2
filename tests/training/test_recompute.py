"""What is computed again: every group of layers, and a stage that has none as a whole, with the same gradients."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from fairlead.training.parallel.recompute import (
    Recompute,
    block_names,
    disable_recompute,
    enable_recompute,
    enable_stage_recompute,
    recompute_groups,
)


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
