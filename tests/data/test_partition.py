"""Every sample goes to exactly one worker, also when their number changes in the middle of an epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.data.partitioning import How, partition
from fairlead.errors import InvalidSpec

HOWS: list[How] = ["equal", "weighted", "key", "label", "length"]


def values_for(samples: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 7, samples)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 300), st.sampled_from(HOWS), st.integers(0, 2**40), st.data())
def test_after_any_number_of_resizes_every_sample_was_seen_exactly_once(
    samples: int, how: How, seed: int, data: st.DataObject
) -> None:
    values, seen, left = values_for(samples, 1), [], np.arange(samples)
    for _ in range(data.draw(st.integers(1, 4))):
        workers = data.draw(st.integers(1, 6))
        weights = data.draw(st.lists(st.floats(0.1, 9), min_size=workers, max_size=workers))
        deal = partition(left, workers, how=how, seed=seed, weights=weights, values=values)
        taken = [data.draw(st.integers(0, len(deal.of(worker)))) for worker in range(workers)]
        seen += [deal.of(worker)[: taken[worker]] for worker in range(workers)]
        left = deal.rest(taken)
    assert sorted(np.concatenate([*seen, left]).tolist()) == list(range(samples))


@pytest.mark.parametrize("how", HOWS)
def test_a_seed_deals_the_same_and_another_seed_or_epoch_deals_otherwise(how: How) -> None:
    values = np.random.default_rng(0).permutation(500)
    deals = [partition(500, 3, how=how, seed=seed, epoch=epoch, weights=[1, 1, 1], values=values)
             for seed, epoch in ((4, 0), (4, 0), (5, 0), (4, 1))]  # fmt: skip
    assert deals[0].cuts == deals[1].cuts and np.array_equal(deals[0].order, deals[1].order)
    assert not np.array_equal(deals[0].order, deals[2].order) and not np.array_equal(deals[0].order, deals[3].order)


def test_equal_parts_differ_by_one_sample_at_most_and_fast_workers_get_more() -> None:
    sizes = [len(partition(1003, 4).of(worker)) for worker in range(4)]
    assert max(sizes) - min(sizes) <= 1 and sum(sizes) == 1003
    weighted = partition(1000, 3, how="weighted", weights=[1, 1, 2])
    assert [len(weighted.of(worker)) for worker in range(3)] == [250, 250, 500]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=200), st.integers(1, 5))
def test_samples_of_a_key_stay_together(keys: list[int], workers: int) -> None:
    deal = partition(len(keys), workers, how="key", values=keys)
    owners = [{keys[sample] for sample in deal.of(worker)} for worker in range(workers)]
    assert sum(map(len, owners)) == len(set(keys))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(0, 99))
def test_every_worker_has_the_same_mix_of_labels(workers: int, seed: int) -> None:
    labels = np.repeat([0, 1, 2], [500, 100, 20])
    deal = partition(len(labels), workers, how="label", seed=seed, values=labels)
    for worker in range(workers):
        mix = np.bincount(labels[deal.of(worker)], minlength=3)
        np.testing.assert_allclose(mix, np.array([500, 100, 20]) / workers, atol=1.5)


def test_by_length_everybody_has_as_much_to_do_and_neighbours_are_about_as_long() -> None:
    lengths = np.random.default_rng(2).lognormal(4, 1, 4_000).astype(int)
    deal = partition(4_000, 4, how="length", values=lengths)
    sums = [lengths[deal.of(worker)].sum() for worker in range(4)]
    assert max(sums) / min(sums) < 1.02
    waste = [_padding(lengths[deal.of(0)]), _padding(lengths[partition(4_000, 4).of(0)])]
    assert waste[0] < 0.2 * waste[1]


def _padding(lengths: np.ndarray, batch: int = 32) -> int:
    batches = [lengths[begin : begin + batch] for begin in range(0, len(lengths), batch)]
    return sum(int(each.max() * len(each) - each.sum()) for each in batches)


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in ({"workers": 0}, {"workers": 2, "how": "weighted"}, {"workers": 2, "weights": [1]},
                  {"workers": 2, "how": "key"}, {"workers": 2, "how": "luck"}):  # fmt: skip
        with pytest.raises(InvalidSpec):
            partition(10, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidSpec):
        partition(10, 2).rest([1])


@pytest.mark.parametrize(
    ("samples", "how", "field"),
    [
        (-3, {}, "samples"),
        (10, {"seed": 1.5}, "seed"),
        (10, {"how": "luck"}, "how"),
        (10, {"how": "key", "values": np.arange(5)}, "values"),
        (10, {"how": "key", "values": np.arange(50)}, "values"),
        (4, {"how": "label", "values": np.zeros((4, 2))}, "values"),
        (2, {"how": "key", "values": np.array(["a", None], object)}, "values"),
        (2, {"how": "length", "values": np.array(["a", "b"])}, "values"),
        (np.array([0, 9]), {"how": "key", "values": np.arange(5)}, "values"),
    ],
)
def test_what_cannot_be_dealt_is_refused_by_name(samples: Any, how: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidSpec) as error:
        partition(samples, 2, **how)
    assert error.value.field == field


def test_large_keys_are_dealt_first_so_that_loads_come_out_even() -> None:
    keys = np.repeat(np.arange(6), [2, 7, 4, 6, 3, 5])
    for seed in range(8):
        deal = partition(len(keys), 2, how="key", seed=seed, values=keys)
        assert sorted(len(deal.of(worker)) for worker in range(2)) == [13, 14]
    unequal = partition(len(keys), 2, how="key", weights=[2, 1], values=keys)
    assert [len(unequal.of(worker)) for worker in range(2)] == [18, 9]
    nothing = partition(len(keys), 2, how="key", weights=[0, 1], values=keys)
    assert [len(nothing.of(worker)) for worker in range(2)] == [0, 27]


def test_by_length_shares_count_and_short_runs_do_not_all_come_first() -> None:
    lengths = np.arange(6_000)
    deal = partition(6_000, 3, how="length", weights=[1, 1, 2], values=lengths)
    sums = [lengths[deal.of(worker)].sum() for worker in range(3)]
    assert sums[2] / sums[0] == pytest.approx(2, rel=0.01) and sums[1] / sums[0] == pytest.approx(1, rel=0.01)
    mine = lengths[deal.of(0)]
    assert (np.diff(mine[:64]) > 0).all()  # a run is in the order of length
    assert mine[:320].mean() > mine[-320:].mean() / 3 and (np.diff(mine) < 0).any()


def test_seeds_and_epochs_of_any_size_are_taken_apart() -> None:
    seen = {tuple(partition(50, 2, seed=seed, epoch=epoch).order.tolist())
            for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1), (-1, 0), (2**63, 0))}  # fmt: skip
    assert len(seen) == 6


@pytest.mark.parametrize("how", ["weighted", "key", "label", "length"])
def test_weights_count_in_proportion_to_each_other(how: How) -> None:
    values = np.random.default_rng(1).integers(0, 9, 200)
    parts, speeds, slow = (partition(200, 3, how=how, weights=weights, values=values)
                           for weights in ((0.25, 0.25, 0.5), (10.0, 10.0, 20.0), (0.01, 0.01, 0.02)))  # fmt: skip
    assert parts.cuts == speeds.cuts == slow.cuts
    assert np.array_equal(parts.order, speeds.order) and np.array_equal(parts.order, slow.order)


@pytest.mark.parametrize("weights", [(1.0,), (1.0, -0.1), (0.0, 0.0), (1.0, float("nan")), (1.0, float("inf"))])
def test_weights_are_one_number_for_each_worker(weights: tuple[float, ...]) -> None:
    with pytest.raises(InvalidSpec, match="one number of 0 or more"):
        partition(10, 2, how="weighted", weights=weights)
    assert len(partition(10, 2, how="weighted", weights=(0.0, 1.0)).of(1)) == 10


def test_nothing_can_be_dealt_and_less_than_nothing_cannot() -> None:
    assert [len(partition(0, 2).of(worker)) for worker in (0, 1)] == [0, 0]
    with pytest.raises(InvalidSpec, match="-1 is negative"):
        partition(-1, 2)
    with pytest.raises(InvalidSpec, match="0 is too few"):
        partition(5, 0)
    assert partition(5, 1).of(0).shape == (5,)
