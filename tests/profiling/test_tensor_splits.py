"""Layers are cut over several workers only where what runs is what they look like, or where trying has shown it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import fairlead
from fairlead.planning.profiles import ModelProfile
from fairlead.profiling.model_profile import profile_model
from fairlead.profiling.tensor_splits import find_splits

X = torch.randn(4, 6)


def found(model: nn.Module, x: torch.Tensor = X) -> set[tuple[str, str]]:
    return {(cut.name, cut.how) for cut in find_splits(model, (x,))}


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


class Counting(Block):
    """Counts its passes by itself."""

    def __init__(self) -> None:
        super().__init__(torch.tanh)
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return super().forward(x)


class Restless(Block):
    """Can be trained, but not be asked at rest."""

    def __init__(self) -> None:
        super().__init__(torch.tanh)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            raise KeyError("at rest")
        return super().forward(x)


def profiled(model: nn.Module, **more: Any) -> ModelProfile:
    data = (torch.randn(16, 6), torch.zeros(16, dtype=torch.int64))
    return profile_model(
        fairlead.Training(model=model, data=data, loss=nn.CrossEntropyLoss(), batch_size=8, epochs=1, **more)
    )


def test_a_model_that_keeps_a_state_of_its_own_is_not_cut_into_stages() -> None:
    profile = profiled(nn.Sequential(Counting(), Counting(), nn.Linear(6, 4)))
    assert len(profile.layers) == 1 and profile.limits[0].startswith("0.passes changes in every pass")


def test_under_an_optimizer_of_whole_parameters_only_copies_run() -> None:
    profile = profiled(nn.Linear(6, 4), optimizer=torch.optim.Adafactor)
    assert profile.copies_only and profile.limits == (
        "Adafactor needs whole parameters, so no worker can hold a part of one",
    )


def test_a_model_that_cannot_be_looked_at_still_has_a_profile_with_the_reason() -> None:
    profile = profiled(Restless())
    assert profile.tensor_limit == 1
    assert any("their analysis failed: 'at rest'" in reason for reason in profile.limits)


def test_layers_that_find_their_size_at_the_first_batch_are_looked_at_like_others() -> None:
    profile = profiled(nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(4)))
    assert profile.parameters == 7 * 16 + 17 * 4 and profile.tensor_limit == 16
