"""A small pipeline of every kind of stage, for the tests."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import torch

import fairlead
from fairlead import pipeline, stage


@stage
def load(rows: int) -> dict[str, np.ndarray]:
    x = np.arange(4.0 * rows).reshape(rows, 4) % 7
    return {"x": x, "y": (x.sum(1) > 12).astype(np.int64)}


@stage(outputs=2)
def split(data, part: float):
    cut = int(len(data["y"]) * part)
    return {name: each[:cut] for name, each in data.items()}, {name: each[cut:] for name, each in data.items()}


@stage(cpu=1, workers="1:2")
def train(data) -> fairlead.Training:
    x, y = torch.tensor(data["x"], dtype=torch.float32), torch.tensor(data["y"])
    return fairlead.Training(
        model=torch.nn.Linear(4, 2), data=(x, y), loss=torch.nn.functional.cross_entropy, batch_size=16, epochs=1,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )  # fmt: skip


@stage
def judge(trained, score: float, data) -> dict[str, object]:
    return {
        "parameters": sum(each.numel() for each in trained["state"].values()),
        "score": float(score),
        "copied": bool(data["x"].flags.owndata or data["x"].flags.writeable),
    }


@pipeline
def every_kind(rows: int = 200):
    from sklearn.linear_model import LogisticRegression

    first, second = split(load(rows), 0.75)
    model = stage(LogisticRegression(max_iter=50), name="regression")(first["x"], first["y"])
    judge(train(first), model.score(second["x"], second["y"]), first)


@stage(retries=1)
def flaky(mark: str) -> int:
    seen = Path(os.environ["FAIRLEAD_OUTPUT"]) / "seen"
    if not seen.exists():
        seen.touch()
        raise RuntimeError(f"not at the first time, {mark}")
    return 1


@stage
def broken(value: int) -> int:
    raise ValueError("no good")


@stage
def plus(value: int, other: int = 1) -> int:
    return value + other


@stage
def unpicklable():
    return threading.Lock()


@pipeline
def half_broken():
    good = flaky("but then")
    plus.named("after-broken")(broken(good))
    plus.named("after-good")(good)
    unpicklable()


@stage
def odd() -> dict[str, float]:
    return {"auc": float("nan"), "long": 10**400, "good": 1.0}


@pipeline
def no_numbers():
    odd()


@stage(cache=False)
def patient(place: str, value: int = 0) -> int:
    """Says that it runs, and waits to be told to end."""
    folder = Path(os.environ["FAIRLEAD_OUTPUT"])
    (folder / place).touch()
    while not (folder / "hurry").exists():
        time.sleep(0.02)
    return value + 1


@pipeline
def slow():
    one = patient.named("one")("begun")
    two = patient.named("two")("begun", one)
    plus.named("three")(two)


@pipeline
def chain(rows: int = 100):
    judge.named("last")({"state": {}}, 1.0, split(load(rows), 0.5)[0])
