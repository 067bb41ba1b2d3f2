"""A pipeline that fits three models of handwritten digits at the same time and chooses the best.

fairlead pipeline run compare.py:models --watch
"""

from __future__ import annotations

from typing import Any

from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from fairlead import pipeline, stage


@stage
def load() -> dict[str, Any]:
    digits = load_digits()
    return {"x": digits.data / 16.0, "y": digits.target}


@stage(outputs=2)
def split(data: dict[str, Any], held_out: float) -> tuple[dict[str, Any], dict[str, Any]]:
    x, test_x, y, test_y = train_test_split(data["x"], data["y"], test_size=held_out, random_state=0)
    return {"x": x, "y": y}, {"x": test_x, "y": test_y}


@stage
def choose(scores: dict[str, float]) -> dict[str, Any]:
    best = max(scores, key=lambda name: scores[name])
    return {"best": best, "accuracy": round(scores[best], 4)}


@pipeline
def models(held_out: float = 0.3, trees: int = 300):
    train, test = split(load(), held_out)
    candidates = {
        "forest": RandomForestClassifier(n_estimators=trees, random_state=0),
        "extra": ExtraTreesClassifier(n_estimators=trees, random_state=0),
        "vectors": SVC(gamma=0.02 * 16),
    }
    fitted = {name: stage(model, name=name)(train["x"], train["y"]) for name, model in candidates.items()}
    choose({name: model.score(test["x"], test["y"]) for name, model in fitted.items()})
