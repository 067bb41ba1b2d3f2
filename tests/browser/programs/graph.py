"""A small graph of stages that end when a test has seen enough."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from fairlead import pipeline, stage


@stage(cache=False)
def load(rows: int, wait: bool = True) -> dict[str, Any]:
    if wait:
        _until_told()
    return {"x": np.ones((rows, 3)), "y": np.zeros(rows)}


@stage(cache=False)
def fit(data: dict[str, Any], wait: bool = True) -> dict[str, float]:
    if wait:
        _until_told()
    return {"score": float(data["x"].mean())}


@stage(cache=False)
def broken(data: dict[str, Any]) -> None:
    raise ValueError("no good")


@stage(cache=False)
def compare(scores: list[dict[str, float]]) -> float:
    return max(each["score"] for each in scores)


def _until_told() -> None:
    told = Path(os.environ["FAIRLEAD_OUTPUT"]) / "go"
    while not told.exists():
        time.sleep(0.05)


@pipeline
def models(rows: int = 100):
    data = load(rows)
    compare([fit.named(name)(data) for name in ("left", "right")])


@pipeline
def half_broken():
    data = load(10, wait=False)
    compare.named("after-broken")([broken(data)])
    fit.named("sound")(data, wait=False)
