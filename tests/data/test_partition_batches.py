"""Batches come from the blocks of a data set, every sample once, whatever the blocks and wherever a worker goes on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.data.batches import Batches
from fairlead.data.partitioning import partition
from fairlead.errors import InvalidSpec


def blocks_of(*sizes: int) -> list[dict[str, torch.Tensor]]:
    rows = torch.arange(sum(sizes))
    columns = {"x": torch.stack([rows, rows * 2], 1).float(), "y": rows}
    return [dict(zip(columns, parts, strict=True))
            for parts in zip(*(column.split(list(sizes)) for column in columns.values()), strict=True)]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 30), st.integers(0, 9))
def test_every_sample_comes_once_with_its_own_target(sizes: list[int], batch: int, seed: int) -> None:
    batches = Batches(blocks_of(*sizes), batch, seed=seed)
    seen = [(x.clone(), y.clone()) for x, y in batches]
    targets = torch.cat([y for _, y in seen])
    assert sorted(targets.tolist()) == list(range(sum(sizes))) and len(seen) == len(batches)
    assert torch.equal(torch.cat([x for x, _ in seen])[:, 1], targets * 2.0)


def test_a_batch_holds_the_same_samples_whether_they_lie_in_one_block_or_in_several() -> None:
    one, several = Batches(blocks_of(90), 16, seed=4), Batches(blocks_of(30, 25, 35), 16, seed=4)
    for (_, alone), (_, spread) in zip(one, several, strict=True):
        assert sorted(alone.tolist()) == sorted(spread.tolist())


def test_a_worker_goes_on_where_the_epoch_was_left() -> None:
    whole = torch.cat([y.clone() for _, y in Batches(blocks_of(100), 8, seed=1, epoch=2)])
    rest = torch.cat([y.clone() for _, y in Batches(blocks_of(100), 8, seed=1, epoch=2, start=40)])
    assert torch.equal(whole[40:], rest)


def test_a_worker_reads_its_own_share() -> None:
    deal = partition(100, 3, how="weighted", weights=[1, 2, 1], seed=5)
    seen = [y.clone() for worker in range(3) for _, y in Batches(blocks_of(60, 40), 7, order=deal.of(worker))]
    assert sorted(torch.cat(seen).tolist()) == list(range(100))


def test_padded_columns_are_cut_to_the_longest_of_their_batch() -> None:
    block = {"ids": torch.ones(6, 10, dtype=torch.int32), "length": torch.tensor([1, 2, 3, 4, 9, 5])}
    batches = Batches([block], 2, order=np.arange(6), trim={"ids": "length"})
    assert [ids.shape[1] for ids, _ in batches] == [2, 4, 9]


def test_what_cannot_be_delivered_is_refused() -> None:
    for wrong in ({"batch_size": 0}, {"batch_size": 2, "columns": ["z"]}, {"batch_size": 2, "order": [7]}):
        with pytest.raises(InvalidSpec):
            Batches(blocks_of(5), **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidSpec):
        Batches([], 2)
