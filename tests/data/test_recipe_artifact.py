"""A recipe reads alike in Python and YAML; fitted it is one document, learned from the training part only."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.data import BadData, read
from fairlead.data.recipes import Assemble, Encode, FittedRecipe, Flag, Impute, Normalise, Recipe, Tokenise
from fairlead.data.recipes.statistics import FrequentValues, Moments, Quantiles
from fairlead.data.train_test_split import split
from fairlead.errors import InvalidSpec

YAML = """
target: y
steps:
  - impute: {how: median, indicator: true}
  - normalise: {columns: [a, "b*"], except: b2, how: standard}
  - encode: {columns: c, how: onehot}
  - encode: {columns: y}
  - assemble
"""
PYTHON = Recipe(
    [
        Impute(how="median", indicator=True),
        Normalise(columns=["a", "b*"], leave=["b2"]),
        Encode(columns="c", how="onehot"),
        Encode(columns="y"),
        Assemble(),
    ],
    target="y",
)


def table(rows: int = 200, seed: int = 0) -> pa.Table:
    draw = np.random.default_rng(seed)
    numbers = draw.normal(size=rows)
    numbers[::9] = np.nan
    return pa.table({
        "a": numbers, "b1": draw.integers(0, 5, rows), "b2": draw.random(rows), "c": draw.choice(["p", "q"], rows),
        "t": draw.choice(["good film", "bad film"], rows), "y": draw.choice(["no", "yes"], rows),
    })  # fmt: skip


def test_python_and_yaml_declare_the_same_recipe() -> None:
    read_again = Recipe.from_yaml(PYTHON.to_yaml())
    assert Recipe.from_yaml(YAML) == PYTHON == read_again
    assert Recipe.from_yaml(YAML).hash == PYTHON.hash != Recipe(PYTHON.steps[1:], "y").hash


@pytest.mark.parametrize(("written", "said"), [
    ("steps: [{normalize: {}}]", r"steps\[0\]: normalize: there is no such step.*"),
    ("steps: [{normalise: {how: fast}}]", r"steps\[0\]: normalise: how"),
    ("steps: [{normalise: {hw: log}}]", r"steps\[0\]: normalise: hw: unknown field"),
    ("steps: [7]", r"steps\[0\]: is not a step"),
    ("steps: {}", "recipe: is not a recipe"),
    ("stages: []\nsteps: []", "recipe: stages: unknown field"),
    ("steps: [", "recipe: is not YAML"),
    ("steps: []\nversion: 9", "version: 9 is not a known recipe version"),
])  # fmt: skip
def test_what_is_no_recipe_is_refused_in_one_line(written: str, said: str) -> None:
    with pytest.raises(InvalidSpec, match=said) as refused:
        Recipe.from_yaml(written)
    assert refused.value.fix and "\n" not in str(refused.value)


def test_an_unknown_step_is_told_what_it_may_have_meant() -> None:
    with pytest.raises(InvalidSpec) as refused:
        Recipe([{"normalize": {}}])
    assert "did you mean normalise?" in str(refused.value.fix)


def test_an_unknown_column_is_told_what_it_may_have_meant() -> None:
    with pytest.raises(InvalidSpec, match=r"normalise.columns: b11: there is no such column") as refused:
        Recipe([Normalise(columns="b11")]).fit(read(table()))
    assert "did you mean b" in str(refused.value.fix)


@pytest.mark.parametrize(("count", "more"), [(20, False), (21, True)])
def test_of_many_columns_twenty_are_named(count: int, more: bool) -> None:
    data = pa.table({f"c{number}": [1.0, 2.0] for number in range(count)})
    with pytest.raises(InvalidSpec) as refused:
        Recipe([Normalise(columns="strange")]).fit(read(data))
    told = str(refused.value.fix)
    assert "c0, c1, " in told and f"c19{' ...' if more else ''}" in told and "c20" not in told
    assert told.endswith(" ...") is more


def test_a_fitted_recipe_is_one_document_that_does_the_same_after_reading_it_back() -> None:
    steps = [*PYTHON.steps[:-1], Tokenise(columns="t", vocabulary=40, length=4), Flag(columns=["a", "b1"], trees=9)]
    fitted = Recipe(steps, target="y").fit(read(table(), batch_rows=50))
    again = FittedRecipe.from_json(fitted.to_json(), expect=fitted.hash)
    assert again.hash == fitted.hash and again.to_json() == fitted.to_json()
    batch = table(30, seed=1).to_batches()[0]
    assert again.apply(batch).equals(fitted.apply(batch))
    assert json.loads(fitted.to_json())["format"] == "fairlead/fitted-recipe/1"
    assert again.flagged == fitted.flagged and again.outputs == fitted.outputs


def test_a_changed_document_is_noticed() -> None:
    fitted = PYTHON.fit(read(table()))
    changed = fitted.to_json().replace('"rows":200', '"rows":201')
    with pytest.raises(InvalidSpec, match="it was modified"):
        FittedRecipe.from_json(changed, expect=fitted.hash)
    for broken in ("{}", "[]", "nonsense", '{"format": "other"}'):
        with pytest.raises(InvalidSpec, match="is not a fitted recipe"):
            FittedRecipe.from_json(broken)


def test_only_the_training_part_is_learned_from() -> None:
    train, rest = split(0.7, seed=5)
    data = table(1000)
    mask = train.mask(0, data.combine_chunks().to_batches()[0])
    assert 650 < mask.sum() < 750
    poisoned = data.to_pandas()
    poisoned.loc[~mask, ["a", "b1", "b2"]] = 1e9
    poisoned.loc[~mask, "c"] = "never seen"
    clean = PYTHON.fit(read(data, batch_rows=64), part=train)
    assert clean.hash == PYTHON.fit(read(pa.Table.from_pandas(poisoned, data.schema), batch_rows=300), part=train).hash
    assert clean.rows == mask.sum()
    assert not (mask & rest.mask(0, data.combine_chunks().to_batches()[0])).any()


def test_rows_of_one_key_are_in_one_part() -> None:
    train, rest = split(0.5, seed=1, key="c")
    batch = pa.RecordBatch.from_pydict({"c": [f"customer {row % 40}" for row in range(400)]})
    inside, outside = train.mask(0, batch), rest.mask(0, batch)
    assert (inside ^ outside).all() and 0 < inside.sum() < 400
    names = np.array(batch["c"].to_pylist())
    assert not set(names[inside]) & set(names[outside])


def test_data_of_another_schema_is_refused_with_the_columns_named() -> None:
    fitted = PYTHON.fit(read(table()))
    with pytest.raises(BadData, match="lacks the columns 'a', 'c'"):
        fitted.apply(table(5).drop(["a", "c"]).to_batches()[0])
    with pytest.raises(BadData, match="column 'a': is string, but was double"):
        fitted.apply(table(5).set_column(0, "a", pa.array(["x"] * 5)).to_batches()[0])


def test_columns_that_nobody_declared_do_not_come_out() -> None:
    fitted = PYTHON.fit(read(table()))
    more = table(5).append_column("secret", pa.array([1] * 5)).to_batches()[0]
    assert "secret" not in fitted.apply(more).schema.names


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(1, 40))
def test_moments_do_not_depend_on_how_the_stream_was_cut(values: list[float], size: int) -> None:
    whole, pieces = np.array(values), Moments(1)
    for begin in range(0, len(values), size):
        piece = Moments(1)
        piece.measure(0, whole[begin : begin + size])
        pieces.add(piece)
    assert pieces.count[0] == len(values)
    assert pieces.mean[0] == pytest.approx(whole.mean(), rel=1e-9, abs=1e-6)
    assert pieces.deviation[0] == pytest.approx(whole.std(), rel=1e-6, abs=1e-3)
    assert (pieces.least[0], pieces.most[0]) == (whole.min(), whole.max())


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.25, 0.5, 0.9, 0.99]))
def test_a_quantile_of_a_long_stream_is_off_by_less_than_half_a_percent_of_its_rows(seed: int, part: float) -> None:
    draw, sketch = np.random.default_rng(seed), Quantiles()
    values = draw.lognormal(0, 2, 50_000)
    for begin in range(0, len(values), 3_000):
        piece = Quantiles()
        piece.add(values[begin : begin + 3_000])
        sketch.merge(piece)
    rank = (values <= sketch.quantiles(part)[0]).mean()
    assert abs(rank - part) < 0.005


def test_counts_of_very_many_values_stay_bounded_and_keep_the_frequent_ones() -> None:
    counts = FrequentValues(limit=100)
    for begin in range(0, 5_000, 50):
        counts.add({f"rare {number}": 1 for number in range(begin, begin + 50)} | {"common": 5})
    assert len(counts.counts) <= 200 and counts.counts["common"] == 500 and counts.dropped > 0
