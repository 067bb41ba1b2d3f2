"""Layers are cut over several workers only where what runs is what they look like, or where trying has shown it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from fairlead.profiling.splits import find_cuts

X = torch.randn(4, 6)


def found(model: nn.Module, x: torch.Tensor = X) -> set[tuple[str, str]]:
    return {(cut.name, cut.how) for cut in find_cuts(model, (x,))}


class Drawer(nn.Module):
    """Uses a sequence as a drawer for layers: its own forward never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net[2](self.net[1](functional.normalize(self.net[0](x), dim=-1)))


class Both(Drawer):
    """Runs the sequence, and a layer of it once more."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) + self.net[0](x).mean(-1, keepdim=True)


class Block(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.up, self.down, self.function = nn.Linear(6, 16), nn.Linear(16, 6), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(input=self.function(self.up(input=x)))


class Encoder(nn.TransformerEncoderLayer):
    def _ff_block(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear2(functional.normalize(self.activation(self.linear1(x)), dim=-1))


class Outer(nn.Module):
    """Calls a method of its block that is not forward."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.out = Block(torch.tanh), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(Block.forward(self.block, x))


class Bare(nn.Module):
    """Reads a table twice: by another layer, or without asking the layer that it belongs to."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(4000, 32), nn.Linear(32, 4000, bias=False)
        self.tied = tied
        if tied:
            self.out.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.words(x).mean(1)
        return self.out(seen) if self.tied else self.out(seen) + seen @ self.words.weight.T


def normalised(x: torch.Tensor) -> torch.Tensor:
    return functional.normalize(x, dim=-1)


PAIR = {("up", "column"), ("down", "row")}


def test_a_sequence_is_cut_where_it_runs_as_a_sequence_only() -> None:
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6))
    assert found(net) == {("0", "column"), ("2", "row")}
    assert found(Drawer()) == found(Both()) == set()
    net[1].register_forward_hook(lambda *_: None)  # somebody looks at what lies between the layers
    assert found(net) == set()


def test_every_block_is_tried_though_one_of_its_class_was() -> None:
    blocks = nn.Sequential(Block(torch.tanh), Block(normalised), Block(torch.tanh))
    assert found(blocks) == {(f"{at}.{name}", how) for at in (0, 2) for name, how in PAIR}


@pytest.mark.parametrize(("function", "cut"), [(torch.tanh, True), (normalised, False)])
def test_a_transformer_layer_is_cut_by_its_own_function_not_by_its_class(
    function: Callable[[torch.Tensor], torch.Tensor], cut: bool
) -> None:
    x = torch.randn(4, 3, 8)
    pair = {("linear1", "column"), ("linear2", "row")} if cut else set()
    assert found(nn.TransformerEncoderLayer(8, 2, 16, activation=function, batch_first=True), x) == {
        ("self_attn", "heads"), *pair
    }  # fmt: skip
    assert found(Encoder(8, 2, 16, activation=torch.tanh, batch_first=True), x) == {("self_attn", "heads")}


def test_a_block_whose_own_forward_is_never_called_stays_whole() -> None:
    assert found(Outer()) == set()


@pytest.mark.parametrize("tied", [True, False])
def test_weights_that_others_use_stay_whole(tied: bool) -> None:
    assert found(Bare(tied), torch.arange(32).view(4, 8)) == set()


def test_layers_that_are_never_called_stay_whole() -> None:
    class Unused(Block):
        def __init__(self) -> None:
            super().__init__(torch.tanh)
            self.rest = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
            self.spare = nn.Linear(1000, 1000)

    assert found(Unused()) == PAIR
