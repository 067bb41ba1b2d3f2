"""Every step of a recipe does what its peer in scikit-learn does, learned from a stream, and replays it on new data."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as Pillow
from sklearn.ensemble import IsolationForest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, OrdinalEncoder, RobustScaler, StandardScaler

from fairlead.data import BadData, read
from fairlead.data.recipes import Assemble, Encode, Flag, Image, Impute, Normalise, Pad, Recipe, Select, Tokenise

RANDOM = np.random.default_rng(7)


def source(columns: dict[str, object], batch_rows: int = 100):  # type: ignore[no-untyped-def]
    return read(pa.table(columns), batch_rows=batch_rows)


def batch(columns: dict[str, object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def column(found: pa.RecordBatch, name: str) -> np.ndarray:
    from fairlead.data.recipes.batch_columns import as_array

    return as_array(found.column(name), found.schema.field(name))


@pytest.mark.parametrize(("how", "peer"), [("standard", StandardScaler()), ("minmax", MinMaxScaler())])
def test_numbers_are_normalised_as_scikit_learn_does(how: str, peer: StandardScaler) -> None:
    values = {"a": RANDOM.normal(1e6, 3.0, 1000), "b": RANDOM.integers(0, 9, 1000), "c": np.full(1000, 0.1)}
    fitted = Recipe([Normalise(how=how)]).fit(source(values))
    new = {"a": RANDOM.normal(1e6, 3.0, 50), "b": RANDOM.integers(0, 20, 50), "c": np.full(50, 0.1)}
    wanted = peer.fit(np.column_stack(list(values.values()))).transform(np.column_stack(list(new.values())))
    found = fitted.apply(batch(new))
    np.testing.assert_allclose(np.column_stack([column(found, name) for name in "abc"]), wanted, rtol=1e-4, atol=1e-4)


def test_a_robust_scale_comes_from_a_sketch_that_is_close_to_the_truth() -> None:
    values = RANDOM.standard_cauchy(60_000)
    fitted = Recipe([Normalise(how="robust")]).fit(source({"a": values}, 5_000))
    peer = RobustScaler().fit(values[:, None])
    assert fitted.states[0]["shift"][0] == pytest.approx(peer.center_[0], abs=0.02)
    assert 1 / fitted.states[0]["scale"][0] == pytest.approx(peer.scale_[0], rel=0.02)


def test_the_logarithm_keeps_signs_and_learns_nothing() -> None:
    found = Recipe([Normalise(how="log")]).fit(source({"a": [1.0, 2.0]})).apply(batch({"a": [0.0, -9.0, 99.0]}))
    np.testing.assert_allclose(column(found, "a"), [0.0, -np.log(10), np.log(100)])


@pytest.mark.parametrize("how", ["mean", "median", "most_frequent"])
def test_missing_numbers_are_filled_as_scikit_learn_does(how: str) -> None:
    values = RANDOM.integers(0, 9, 999).astype(float)
    values[::7] = np.nan
    fitted = Recipe([Impute(how=how, indicator=True)]).fit(source({"a": values}))
    found = fitted.apply(batch({"a": [None, 3.0, float("nan")]}))
    wanted = SimpleImputer(strategy=how).fit(values[:, None]).transform([[np.nan], [3.0], [np.nan]])
    np.testing.assert_allclose(column(found, "a"), wanted[:, 0])
    assert column(found, "a_missing").tolist() == [1, 0, 1]


def test_missing_text_is_filled_with_the_most_frequent_or_a_given_one() -> None:
    data = {"a": ["x", None, "y", "x"], "b": ["p", None, "q", "q"]}
    recipe = Recipe([Impute(columns="a", how="most_frequent"), Impute(columns="b", how="constant", value="?")])
    fitted = recipe.fit(source(data))
    found = fitted.apply(batch({"a": [None], "b": pa.array([None], pa.string())}))
    assert (found["a"].to_pylist(), found["b"].to_pylist()) == (["x"], ["?"])


def test_a_step_learns_from_what_the_step_before_it_left() -> None:
    values = np.array([1.0, np.nan, 3.0, np.nan] * 50)
    fitted = Recipe([Impute(how="constant", value=0), Normalise()]).fit(source({"a": values}))
    assert fitted.states[1]["shift"][0] == pytest.approx(1.0)
    both = Recipe([Impute(how="mean"), Normalise()]).fit(source({"a": values}))
    filled = StandardScaler().fit(SimpleImputer().fit_transform(values[:, None]))
    assert 1 / both.states[1]["scale"][0] == pytest.approx(filled.scale_[0])


def test_categories_become_codes_in_the_order_of_scikit_learn_and_unseen_ones_get_their_own() -> None:
    values = RANDOM.choice(["red", "green", "blue"], 300)
    new = ["blue", "violet", "red", None]
    ordinal = Recipe([Encode()]).fit(source({"a": values})).apply(batch({"a": new}))
    peer = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=3).fit(values[:, None])
    assert column(ordinal, "a").tolist()[:3] == peer.transform(np.array(new[:3])[:, None])[:, 0].tolist()
    assert column(ordinal, "a").tolist()[3] == 3


def test_one_hot_columns_are_those_of_scikit_learn() -> None:
    values = RANDOM.choice(["red", "green", "blue"], 300)
    new = np.array(["blue", "violet", "red"])
    fitted = Recipe([Encode(how="onehot", unseen="none")]).fit(source({"a": values}))
    peer = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(values[:, None])
    np.testing.assert_array_equal(column(fitted.apply(batch({"a": new})), "a"), peer.transform(new[:, None]))
    assert fitted.outputs[0].labels == ("a=blue", "a=green", "a=red")


def test_an_unseen_category_may_be_refused_by_name() -> None:
    fitted = Recipe([Encode(unseen="refuse")]).fit(source({"a": ["x", "y"]}))
    with pytest.raises(BadData, match="'a': violet was not in the training part"):
        fitted.apply(batch({"a": ["violet"]}))


def test_of_many_values_as_many_are_kept_as_asked_for() -> None:
    values = [f"v{number:06}" for number in range(140_000)]
    fitted = Recipe([Encode(limit=100_000)]).fit(source({"a": values}))
    assert len(fitted.states[0]["known"][0]) == 100_000


def test_rare_and_hashed_categories() -> None:
    values = ["x"] * 5 + ["y"] * 5 + ["z"]
    assert Recipe([Encode(at_least=2)]).fit(source({"a": values})).states[0]["known"] == [["x", "y"]]
    assert Recipe([Encode(limit=1)]).fit(source({"a": values})).states[0]["known"] == [["x"]]
    hashed = Recipe([Encode(how="hash", buckets=16)]).fit(source({"a": values})).apply(batch({"a": ["new"]}))
    assert column(hashed, "a").tolist() == [zlib.crc32(b"new") % 16]


def test_columns_lie_side_by_side_in_one_matrix_and_the_target_apart() -> None:
    data = {"n": [1.0, 3.0], "c": ["x", "y"], "flag": [True, False], "y": ["no", "yes"]}
    steps = [Normalise(columns="n"), Encode(columns="c", how="onehot"), Encode(columns="y"), Assemble()]
    fitted = Recipe(steps, target="y").fit(source(data))
    found = fitted.apply(batch(data))
    assert column(found, "features").tolist() == [[-1, 1, 0, 0, 1], [1, 0, 1, 0, 0]]
    assert column(found, "y").tolist() == [0, 1]
    assert fitted.features[0].labels == ("n", "c=x", "c=y", "c=(unseen)", "flag")
    assert fitted.target is not None and fitted.target.labels == ("no", "yes")
    del data["y"]
    assert fitted.apply(batch(data)).schema.names == ["features"], "nobody knows the target when a model serves"


def test_a_column_that_is_called_text_is_kept_by_its_name_when_it_is_none_any_more() -> None:
    data = {"text": ["a film", "a plot"] * 20, "other": ["x", "y"] * 20, "label": [0, 1] * 20}
    for rest in ([], [Encode(columns="other")]):
        steps = [*rest, Tokenise(columns="text", vocabulary=40, length=4), Select(columns=("text", "label"))]
        source_of = data if rest else {name: data[name] for name in ("text", "label")}
        found = Recipe(steps, target="label").fit(source(source_of)).apply(batch(source_of))
        assert column(found, "text").shape == (40, 4)
        assert "label" in found.schema.names
    with pytest.raises(BadData, match="several numbers per row"):
        Recipe([Tokenise(vocabulary=40, length=4), Encode(columns="other")]).fit(source(data))


def test_scaled_columns_beside_and_apart_from_each_other_lie_where_they_belong() -> None:
    rows = 9_000  # more than are written at a time
    numbers = {name: RANDOM.normal(place, 1 + place, rows) for place, name in enumerate("abde")}
    data = {"a": numbers["a"], "b": numbers["b"], "c": RANDOM.integers(0, 3, rows).astype(str), "d": numbers["d"],
            "e": RANDOM.integers(0, 9, rows)}  # fmt: skip
    steps = [Normalise(columns=("a", "b", "d")), Encode(columns="c", how="onehot", unseen="none"), Assemble()]
    found = column(Recipe(steps).fit(source(data, 4_500)).apply(batch(data)), "features")
    scaled = [StandardScaler().fit_transform(np.asarray(data[name])[:, None])[:, 0] for name in "abd"]
    hot = [data["c"] == str(code) for code in range(3)]
    wanted = np.column_stack([scaled[0], scaled[1], *hot, scaled[2], data["e"]])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_text_becomes_tokens_of_a_vocabulary_that_is_trained_on_it() -> None:
    texts = ["a fine film", "a bad film", "what a film", None] * 30
    recipe = Recipe([Tokenise(columns="t", vocabulary=60, length=6)])
    fitted = recipe.fit(source({"t": texts}))
    found = fitted.apply(batch({"t": ["a fine film", "film", ""]}))
    ids, lengths = column(found, "t"), column(found, "t_length")
    assert ids.shape == (3, 6) and ids.dtype == np.int32
    assert lengths.tolist() == [3, 1, 0] and ids[0, 2] == ids[1, 0] and ids[2].tolist() == [0] * 6
    again = recipe.fit(source({"t": texts}, batch_rows=17))
    assert again.hash == fitted.hash, "the size of batches does not change what is learned"


def test_a_given_vocabulary_is_taken_as_it_is() -> None:
    recipe = Recipe([Tokenise(columns="t", model="words", vocabulary=("film", "good"), length=3)])
    fitted = recipe.fit(source({"t": ["x"]}))
    assert column(fitted.apply(batch({"t": ["Good film noir"]})), "t").tolist() == [[3, 2, 1]]


def test_lists_are_padded_and_told_apart_by_length() -> None:
    lists = [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4, 5, 6]]
    fitted = Recipe([Pad(columns="l", length=4, buckets=(2,))]).fit(source({"l": lists}))
    found = fitted.apply(batch({"l": lists}))
    assert column(found, "l").tolist() == [[1, 0, 0, 0], [1, 2, 0, 0], [1, 2, 3, 0], [1, 2, 3, 4]]
    assert column(found, "l_length").tolist() == [1, 2, 3, 4] and column(found, "l_bucket").tolist() == [0, 0, 1, 1]
    unordered = Recipe([Pad(columns="l", length=16, buckets=(9, 2))]).fit(source({"l": lists}))
    assert column(unordered.apply(batch({"l": lists})), "l_bucket").tolist() == [0, 0, 1, 1]
    left = Recipe([Pad(columns="l", length=3, side="left", value=-1)]).fit(source({"l": lists}))
    assert column(left.apply(batch({"l": lists})), "l").tolist()[1] == [-1, 1, 2]


def test_tokens_may_be_padded_by_a_step_of_their_own_into_fitted_buckets() -> None:
    texts = [" ".join(["word"] * count) for count in range(1, 101)]
    recipe = Recipe([Tokenise(columns="t", vocabulary=30, pad=False), Pad(columns="t", coverage=1.0, buckets=4)])
    fitted = recipe.fit(source({"t": texts}))
    assert len(fitted.states[1]["ends"][0]) == 4
    buckets = column(fitted.apply(batch({"t": texts})), "t_bucket")
    assert np.bincount(buckets).tolist() == pytest.approx([25] * 4, abs=2)


def png(pixels: np.ndarray) -> bytes:
    kept = io.BytesIO()
    Pillow.fromarray(pixels).save(kept, "png")
    return kept.getvalue()


def test_images_are_resized_and_normalised_by_what_the_training_part_holds() -> None:
    pixels = RANDOM.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    fitted = Recipe([Image(mean="fit", std="fit")]).fit(source({"image": [png(each) for each in pixels]}))
    found = column(fitted.apply(batch({"image": [png(pixels[0])]})), "image")
    scaled = pixels / 255.0
    wanted = (scaled[0] - scaled.mean((0, 1, 2))) / scaled.std((0, 1, 2))
    np.testing.assert_allclose(found[0], wanted.transpose(2, 0, 1), atol=1e-5)
    small = Recipe([Image(size=(4, 4), dtype="uint8", layout="hwc")]).fit(source({"image": [png(pixels[0])]}))
    assert column(small.apply(batch({"image": [png(pixels[1])]})), "image").shape == (1, 4, 4, 3)


def test_what_is_no_image_is_refused_by_row_and_column() -> None:
    fitted = Recipe([Image()]).fit(source({"image": [png(np.zeros((2, 2, 3), np.uint8))]}))
    with pytest.raises(BadData, match="row 1, column 'image': is not an image"):
        fitted.apply(batch({"image": [b"not a picture"]}))


def test_anomalies_are_scored_as_scikit_learn_scores_them_and_what_was_flagged_is_kept() -> None:
    values = RANDOM.normal(size=(600, 3))
    values[17] = 9.0
    data = {name: values[:, place] for place, name in enumerate("abc")}
    fitted = Recipe([Flag(part=0.02, trees=20, seed=3)]).fit(source(data))
    peer = IsolationForest(n_estimators=20, random_state=3).fit(values.astype(np.float32))
    found = fitted.apply(batch(data))
    np.testing.assert_allclose(column(found, "anomaly"), -peer.score_samples(values.astype(np.float32)), rtol=1e-5)
    assert column(found, "anomaly_flag")[17] == 1 and 17 in fitted.flagged
    assert column(found, "anomaly_flag").sum() == len(fitted.flagged) == 12


def test_steps_after_a_dropped_row_do_not_learn_from_it() -> None:
    values = np.append(RANDOM.normal(size=500), [1e6])
    recipe = Recipe([Flag(part=0.01, trees=20, action="drop"), Normalise(), Select(columns="a")])
    fitted = recipe.fit(source({"a": values}))
    assert 1 / fitted.states[1]["scale"][0] < 2


def test_a_column_that_adds_up_to_infinity_is_refused_by_name() -> None:
    with pytest.raises(BadData, match="column 'a': holds infinity"):
        Recipe([Normalise()]).fit(source({"a": [1.0, float("inf")]}))
