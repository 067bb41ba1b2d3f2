"""Compressed gradients: every rank ends with the same sum, near the true one, and rounding errors do not add up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fairlead.planning.plan import Compression
from fairlead.training.parallel.compression import Int8Sum, make_compression
from fairlead.training.parallel.gradients import FlatGradients
from fairlead.training.step_flags import GroupFlags, RankFlags


class Here:
    """Ranks that are threads: what a group of processes does, where all of them can be looked at."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._given: list[torch.Tensor] = [torch.empty(0)] * size
        self._all_there = threading.Barrier(size, timeout=30.0)

    def everywhere(self, what: Callable[[Rank], torch.Tensor]) -> list[torch.Tensor]:
        found: list[torch.Tensor] = [torch.empty(0)] * self.size

        def run(rank: int) -> None:
            found[rank] = what(Rank(self, rank))

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def exchange(self, rank: int, tensor: torch.Tensor) -> torch.Tensor:
        self._given[rank] = tensor.clone()
        self._all_there.wait()
        every = torch.stack(self._given)
        self._all_there.wait()
        return every


class Rank:
    device = torch.device("cpu")

    def __init__(self, ranks: Here, rank: int) -> None:
        self._ranks, self.rank, self.size = ranks, rank, ranks.size

    def sum(self, tensor: torch.Tensor) -> None:
        tensor.copy_(self._ranks.exchange(self.rank, tensor).sum(0))

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._ranks.exchange(self.rank, tensor)


def steps(size: int, compression: Compression, count: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """What each rank has summed up over some steps, and what the true sums come to."""
    draw = torch.Generator().manual_seed(5)
    gradients = torch.randn(count, size, 300, generator=draw)

    def train(rank: Rank) -> torch.Tensor:
        way, buffer, moved = make_compression(compression), torch.zeros(300), torch.zeros(300)
        assert way is not None
        for step in range(count):
            buffer.copy_(gradients[step, rank.rank])
            way.sum(rank, buffer)
            moved += buffer
        return moved

    return Here(size).everywhere(train), gradients.sum((0, 1))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("compression", "error"), [("bf16", 2e-2), ("int8", 4e-2)])
def test_every_rank_moves_alike_and_nearly_as_it_should(size: int, compression: Compression, error: float) -> None:
    moved, true = steps(size, compression, 1)
    assert all(torch.equal(each, moved[0]) for each in moved)
    assert (moved[0] - true).abs().max() <= error * true.abs().max()


def test_what_a_quarter_loses_comes_with_the_next_step_so_that_nothing_is_lost_for_long() -> None:
    (one, _), true_one = steps(2, "int8", 1)
    (many, _), true_many = steps(2, "int8", 40)
    first, last = (one - true_one).abs().max(), (many - true_many).abs().max()
    assert last < 3 * first, "errors do not add up"


def test_a_gradient_of_nothing_stays_nothing() -> None:
    for compression in ("bf16", "int8"):
        way = make_compression(compression)  # type: ignore[arg-type]
        assert way is not None
        sums = Here(1).everywhere(lambda rank, way=way: _summed(way, rank))  # type: ignore[misc]
        assert not sums[0].any()


def _summed(way: object, rank: Rank) -> torch.Tensor:
    buffer = torch.zeros(8)
    way.sum(rank, buffer)  # type: ignore[attr-defined]
    return buffer


# ---------------------------------------------------------------- with the gradients of a model


def exchanged(size: int, compression: Compression) -> list[tuple[GroupFlags, list[torch.Tensor | None]]]:
    """What each rank has after an exchange: flags, and gradients of four parameters (the last two: some, no rank's)."""
    found: list[Any] = [None] * size

    def run(rank: Rank) -> torch.Tensor:
        parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((3, 5), (5,), (2,), (4,))]
        gradients = FlatGradients(parameters, rank, compression)
        parameters[0].grad = torch.full((3, 5), 0.3 * (rank.rank + 1))
        parameters[1].grad = torch.arange(5.0) - rank.rank
        if rank.rank == 0:
            parameters[2].grad = torch.ones(2)
        own = RankFlags(loss=1.0 + 2.0**-16 * rank.rank, compute_s=257.0, leaving=rank.rank == 1)
        found[rank.rank] = gradients.exchange(own), [p.grad for p in parameters]
        return torch.empty(0)

    Here(size).everywhere(run)
    return found


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("compression", "error"), [("none", 1e-6), ("bf16", 2e-2), ("int8", 4e-2)])
def test_every_rank_has_the_same_gradients_and_exact_flags(size: int, compression: Compression, error: float) -> None:
    found = exchanged(size, compression)
    flags, gradients = found[0]
    assert flags.losses == tuple(1.0 + 2.0**-16 * rank for rank in range(size)), "a loss is never rounded to bf16"
    assert flags.compute_s == (257.0,) * size and flags.leaving == 1 and not flags.snapshot
    true = [
        torch.full((3, 5), 0.3 * sum(range(1, size + 1))),
        torch.arange(5.0) * size - sum(range(size)),
        torch.ones(2),
    ]
    for other, theirs in found:
        assert other == flags and theirs[3] is None, "no rank has a gradient of it"
        for own, each, sum_ in zip(gradients[:3], theirs[:3], true, strict=True):
            assert own is not None and each is not None and torch.equal(own, each)
            assert (each - sum_).abs().max() <= error * max(value.abs().max() for value in true)


def test_without_compression_there_is_no_other_sum() -> None:
    assert make_compression("none") is None


def test_int8_rounds_to_the_nearest_step_and_sends_the_rest_with_the_next_gradient() -> None:
    def train(rank: Rank) -> torch.Tensor:
        way, buffer = Int8Sum(), torch.tensor([127.0, 126.6, -126.4, 0.4, -0.6])
        way.sum(rank, buffer)
        first = buffer.clone()
        buffer.zero_()
        way.sum(rank, buffer)
        return torch.stack([first, buffer.clone()])

    (both,) = Here(1).everywhere(train)
    assert both[0].tolist() == [127.0, 127.0, -126.0, 0.0, -1.0]
    assert both[1].tolist() == pytest.approx([0.0, -0.4, -0.4, 0.4, 0.4], abs=0.4 / 127)


def test_int8_keeps_the_rest_of_each_buffer_apart() -> None:
    def train(rank: Rank) -> torch.Tensor:
        way, one, other = Int8Sum(), torch.tensor([127.0, 0.4]), torch.tensor([127.0, 0.0])
        way.sum(rank, one)
        way.sum(rank, other)
        return other

    (found,) = Here(1).everywhere(train)
    assert found.tolist() == [127.0, 0.0]


def test_a_rank_with_small_gradients_is_heard_beside_one_with_large_ones() -> None:
    def train(rank: Rank) -> torch.Tensor:
        buffer = torch.tensor([1270.0, 0.0]) if rank.rank == 0 else torch.tensor([0.0, 1.27])
        Int8Sum().sum(rank, buffer)
        return buffer

    for found in Here(2).everywhere(train):
        assert found.tolist() == pytest.approx([1270.0, 1.27], rel=1e-5), "each rank has a scale of its own"
