"""Twelve stages in four independent branches: prepare a table, fit a model on it, judge what the model looks at.

As a pipeline they are stages; as plain functions they are what the peers call. Each works on one core, for seconds that
``size`` scales, and says when it ran and how much processor time it took.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fairlead import pipeline, stage

MODELS = ("forest", "extra", "boosting", "linear")
ROWS = 220_000
COLUMNS = 38
SHUFFLES = {"forest": 4, "extra": 3, "boosting": 3, "linear": 45}  # of each column, so that all take about as long

Timed = dict[str, Any]


def timed(function: Callable[..., Any]) -> Callable[..., Timed]:
    """The function, with when it began and ended, and the processor time in between, beside what it gives."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Timed:
        began_s, cpu_s = time.time(), time.process_time()
        value = function(*args, **kwargs)
        return {"value": value, "began_s": began_s, "ended_s": time.time(), "cpu_s": time.process_time() - cpu_s}

    return wrapped


@timed
def prepare(model: str, size: float) -> dict[str, np.ndarray]:
    """A sample of its own for each branch: every column as its quantiles, and how far rows are from eight middles."""
    from sklearn.cluster import KMeans
    from sklearn.preprocessing import QuantileTransformer

    x, y = table(int(ROWS * size), MODELS.index(model))
    even = QuantileTransformer(n_quantiles=2000, subsample=len(x), random_state=0).fit_transform(x).astype(np.float32)
    far = KMeans(8, n_init=9, max_iter=40, tol=0.0, random_state=0).fit_transform(even)
    return {"x": np.hstack([even, far]), "y": y}


@timed
def fit(model: str, data: Timed) -> Any:
    """A model of the branch's kind."""
    from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import SGDClassifier

    made = {
        "forest": lambda: RandomForestClassifier(n_estimators=36, random_state=0),
        "extra": lambda: ExtraTreesClassifier(n_estimators=50, random_state=0),
        "boosting": lambda: HistGradientBoostingClassifier(max_iter=60, random_state=0, early_stopping=False),
        "linear": lambda: SGDClassifier(loss="log_loss", max_iter=65, tol=None, random_state=0),
    }[model]()
    return made.fit(data["value"]["x"], data["value"]["y"])


@timed
def judge(model: str, fitted: Timed, data: Timed) -> dict[str, float]:
    """By column: how much worse the model gets when it is shuffled."""
    rng = np.random.default_rng(0)
    x, y = data["value"]["x"][::15].copy(), data["value"]["y"][::15]
    whole = fitted["value"].score(x, y)
    worse = {}
    for column in range(x.shape[1]):
        kept = x[:, column].copy()
        scores = []
        for _ in range(SHUFFLES[model]):
            x[:, column] = rng.permutation(kept)
            scores.append(fitted["value"].score(x, y))
        x[:, column] = kept
        worse[str(column)] = float(whole - np.mean(scores))
    return worse


STAGES = {"prepare": stage(prepare, cache=False), "fit": stage(fit, cache=False), "judge": stage(judge, cache=False)}


@pipeline
def branches(size: float = 1.0):
    """Four branches that have nothing to do with each other."""
    for model in MODELS:
        data = STAGES["prepare"].named(f"prepare-{model}")(model, size)
        fitted = STAGES["fit"].named(f"fit-{model}")(model, data)
        STAGES["judge"].named(f"judge-{model}")(model, fitted, data)


@stage(cache=False)
@timed
def link(before: Any) -> None:
    """Does nothing, after another."""


@pipeline
def chain(links: int = 8):
    """Stages that only wait for each other."""
    last: Any = None
    for _ in range(links):
        last = link(last)


def table(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and whether it was an attack: KDD 99 where FAIRLEAD_DATA holds it, else made up."""
    rng = np.random.default_rng(seed)
    file = Path(os.environ.get("FAIRLEAD_DATA", "")) / "kdd99" / "kddcup_10_percent.parquet"
    if not file.is_file():
        return _made_up(rows, rng)
    import pyarrow.parquet as pq

    read = pq.read_table(file)
    columns = [column.to_numpy() for column in read.columns if str(column.type) in ("int64", "double")]
    attack = np.asarray(read.column("label").to_pandas() != "normal.")
    chosen = rng.choice(len(attack), rows)
    return np.stack(columns, 1)[chosen].astype(np.float64), attack[chosen].astype(np.int64)


def _made_up(rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """As easy as the real ones: a few kinds of connections, much alike among themselves, most of them attacks."""
    middles = np.floor(np.random.default_rng(0).lognormal(2.0, 2.0, size=(23, COLUMNS)))
    kind = rng.choice(len(middles), rows, p=np.arange(1, 24) ** 2 / np.sum(np.arange(1, 24) ** 2))
    x = np.floor(middles[kind] * rng.choice([1.0, 1.0, 1.0, 1.1, 0.5], size=(rows, COLUMNS)))
    return x, (kind < 20).astype(np.int64)
