"""What recipes learn from a stream: exact where it can be, the same whatever the batches are, in bounded memory."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.data.recipes.recipe import _kind
from fairlead.data.recipes.statistics import FrequentValues, Moments, Quantiles, Reservoir, splitmix64, without_missing


@pytest.mark.parametrize("sizes", [[1_000], [1, 999], [333, 0, 667], [500, 500]])
def test_moments_are_those_of_all_rows_however_they_came(sizes: list[int]) -> None:
    values = np.random.default_rng(3).normal(1e6, 2.0, 1_000)
    values[::10] = np.nan
    whole, begin = Moments(2), 0
    for size in sizes:
        part = Moments(2)
        part.measure(1, values[begin : begin + size])
        whole.add(part)
        begin += size
    there = values[~np.isnan(values)]
    assert whole.count.tolist() == [0, 900] and whole.mean[1] == pytest.approx(there.mean(), rel=1e-12)
    assert whole.deviation.tolist() == [0.0, pytest.approx(there.std(), rel=1e-9)]
    assert (whole.least[1], whole.most[1]) == (there.min(), there.max())
    assert (whole.least[0], whole.most[0]) == (np.inf, -np.inf)
    plain = Moments(1)
    plain.measure(0, np.array([1, 2, 3]), range_too=False)
    assert (plain.count[0], plain.mean[0], plain.m2[0], plain.least[0]) == (3, 2.0, 2.0, np.inf)


def test_quantiles_of_few_values_are_exact_and_of_many_close_in_bounded_memory() -> None:
    few = Quantiles()
    assert np.isnan(few.quantiles(0.5, 0.9)).all() and len(few.quantiles(0.5, 0.9)) == 2
    few.add(np.array([5.0, 1.0, np.nan, 3.0]))
    assert few.quantiles(0.0, 0.5, 1.0) == [1.0, 3.0, 5.0]
    parts = [Quantiles() for _ in range(4)]
    values = np.random.default_rng(1).permutation(200_000).astype(float)
    for part, mine in zip(parts, np.split(values, 4), strict=True):
        for batch in np.split(mine, 50):
            part.add(batch)
    for part in parts[1:]:
        parts[0].merge(part)
    assert parts[0].quantiles(0.05, 0.5, 0.99) == pytest.approx([10_000, 100_000, 198_000], abs=1_500)
    assert sum(map(len, parts[0]._levels)) < 60_000


def test_rare_values_are_forgotten_when_there_are_very_many_and_never_the_common_ones() -> None:
    counts = FrequentValues(10)
    counts.add({"a": 5, "b": 5, **{f"r{n:02}": 1 for n in range(18)}})
    assert counts.dropped == 0 and len(counts.counts) == 20
    counts.add({"a": 1, "z": 2})
    assert counts.dropped == 11 and len(counts.counts) == 10 and counts.counts["a"] == 6 and counts.counts["z"] == 2
    assert counts.top() == "a" and counts.common(2) == ["a", "b", "z"] and counts.common(6) == ["a"]
    assert counts.common(1, 2) == ["a", "b"] and len(counts.common(1, 10)) == 10
    tied = FrequentValues()
    tied.add({"b": 2, "a": 2, 3: 2, 1: 1})
    assert tied.top() == 3 and tied.common() == [1, 3, "a", "b"] and tied.common(1, 1) == [3]
    assert FrequentValues().top() is None and FrequentValues().common() == []


@pytest.mark.parametrize("step", [1_000, 37, 1])
def test_a_sample_is_the_rows_with_the_smallest_lots_whatever_the_batches_were(step: int) -> None:
    sample, rows = Reservoir(50, 7), 1_000
    for begin in range(0, rows, step):
        places = np.arange(begin, min(begin + step, rows))
        chosen, keys = sample.choose(places)
        assert len(chosen) == min(50, len(places))
        sample.add(places[chosen], keys, np.stack([places[chosen] * 2.0], axis=1))
    lots = splitmix64(np.arange(rows, dtype=np.uint64), 7)
    expected = np.sort(np.argsort(lots)[:50])
    found, values = sample.sample()
    assert found.tolist() == expected.tolist() and values[:, 0].tolist() == (expected * 2.0).tolist()
    assert len(Reservoir(5, 0).sample()[0]) == 0


def test_lots_are_those_of_every_version() -> None:
    """A part of a data set is another one if they change."""
    assert splitmix64(np.arange(3, dtype=np.uint64), 0).tolist() == [
        16294208416658607535, 10451216379200822465, 10905525725756348110,
    ]  # fmt: skip
    assert splitmix64(np.arange(2, dtype=np.uint64), 7).tolist() == [14232521865600346940, 9648886400068060533]
    assert without_missing(np.array([1.0, np.nan])).tolist() == [1.0] and without_missing(
        np.array([1, 2])
    ).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("said", "word"),
    [("int64", "number"), ("uint8", "number"), ("double", "number"), ("bool", "number"), ("decimal128(5, 2)", "number"),
     ("string", "text"), ("large_string", "text"), ("dictionary<values=string, indices=int32, ordered=0>", "text"),
     ("dictionary<values=int64, indices=int32, ordered=0>", "number"), ("fixed_size_list<item: float>[3]", "numbers"),
     ("timestamp[us]", "timestamp[us]")],
)  # fmt: skip
def test_a_type_is_told_in_a_word(said: str, word: str) -> None:
    assert _kind(said) == word
