"""Gradients made smaller on their way: every rank ends with the same sum, near the true one, whatever is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from fairlead.planning.plan import Compression
from fairlead.training.parallel.compression import make_compression


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
    def __init__(self, ranks: Here, rank: int) -> None:
        self._ranks, self.rank = ranks, rank

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
