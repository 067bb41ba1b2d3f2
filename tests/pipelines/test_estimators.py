"""Estimators use the cores of their worker, all of them and no more; what stages give is told in a few words."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from fairlead.pipelines import estimators, results


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")


def test_an_estimator_divides_its_work_over_the_cores_of_its_worker_whatever_it_asked_for() -> None:
    from sklearn.ensemble import RandomForestClassifier

    for asked, given in ((None, 2), (-1, 2), (64, 2), (1, 1)):
        forest = RandomForestClassifier(n_jobs=asked)
        with estimators.in_parallel(forest) as cores:
            assert (cores, forest.n_jobs) == (2, given)
            assert os.environ["OMP_NUM_THREADS"] == "1", "processes that a search starts have one core each"
        assert forest.n_jobs == asked, "what was asked for is what is kept"
        assert os.environ["OMP_NUM_THREADS"] == "2"


def test_of_several_that_lie_in_each_other_the_outermost_divides_its_work() -> None:
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline

    inner = RandomForestClassifier(n_jobs=-1)
    search = GridSearchCV(make_pipeline(inner), {"randomforestclassifier__max_depth": [2, 3]})
    with estimators.in_parallel(search):
        assert (search.n_jobs, inner.n_jobs) == (2, 1)
    assert (search.n_jobs, inner.n_jobs) == (None, -1)
    whole = make_pipeline(inner)  # has no n_jobs of its own
    with estimators.in_parallel(whole):
        assert inner.n_jobs == 2


def test_nobody_is_warned_of_settings_that_were_not_theirs(recwarn: pytest.WarningsRecorder) -> None:
    from sklearn.linear_model import LogisticRegression

    x = np.random.default_rng(0).normal(size=(80, 3))
    fitted = estimators.fit(LogisticRegression(), x, x[:, 0] > 0)
    assert estimators.call(fitted, "score", x, x[:, 0] > 0) > 0.9
    assert not [each for each in recwarn if "n_jobs" in str(each.message)]


def test_a_fitted_estimator_is_what_it_would_have_been_elsewhere() -> None:
    from sklearn.ensemble import RandomForestClassifier

    x = np.random.default_rng(0).normal(size=(60, 3))
    fitted = estimators.fit(RandomForestClassifier(n_estimators=5, n_jobs=-1, random_state=0), x, x[:, 0] > 0)
    plain = RandomForestClassifier(n_estimators=5, random_state=0).fit(x, x[:, 0] > 0)
    assert (estimators.call(fitted, "predict", x) == plain.predict(x)).all()
    assert fitted.n_jobs == -1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros((3, 4)), "ndarray 3 x 4 float64"),
        ({"x": np.zeros((3, 4)), "y": np.zeros(3, np.int64)}, "{x: ndarray 3 x 4 float64, y: ndarray 3 int64}"),
        (({"x": np.zeros(2)}, 1.5), "({x: ndarray 2 float64}, 1.5)"),
        ([np.zeros(1)] * 40, "list of 40"),
        ({"a": {"b": {"c": np.zeros(1)}}}, "{a: {b: dict of 1}}"),
        ({"score": 0.5}, "{'score': 0.5}"),
        (object(), "object"),
    ],
)
def test_what_a_stage_gave_is_told_in_a_few_words(value: Any, words: str) -> None:
    assert results.describe_value(value) == words
    assert len(results.describe_value({f"{'k' * 90}{n}": np.zeros(3) for n in range(5)})) <= results.MAX_SHOWN_CHARS
