"""Writes the result of a finished training: model, metrics and history, as files in the job's folder."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_model

from fairlead.training.grid_dataset import recipe_of
from fairlead.training.session import Session


@dataclass(frozen=True, slots=True)
class DataMade:
    """Returned by a loop that made data sets: the manifest and fitted recipe of each, to be registered."""

    sets: list[dict[str, Any]] = field(default_factory=list)


def final_metrics(session: Session) -> dict[str, float]:
    """The last loss and the last evaluation, under the names of the Training, without non-finite values."""
    loss = session.history.last_loss
    found = ({} if loss is None else {"loss": loss}) | dict(session.history.last_metrics)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def write_result(session: Session, folder: Path) -> list[str]:
    """Write model, metrics and history; returns the names of the files in ``output/``."""
    output = folder / "output"
    output.mkdir(parents=True, exist_ok=True)
    figures = final_metrics(session) | {
        "steps": session.step,
        "samples": len(session.samples) * (session.step // session.steps_per_epoch),
        "seconds": session.history.seconds,
    }
    if session.training.compares_epochs:
        judgement = session.early_stopping
        figures |= {"best_step": judgement.best_step, f"best_{session.training.monitor}": judgement.best}
    if session.early_stopping.model:
        session.model.load_state_dict(session.early_stopping.model)

    def history(path: Path) -> None:
        with path.open("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in session.history.rows(0))

    # save_model handles weights that share their storage; save_file would refuse them.
    write_atomically(output / "model.safetensors", lambda path: save_model(session.model, str(path)))
    write_atomically(output / "metrics.json", lambda path: path.write_text(json.dumps(figures, indent=2) + "\n"))
    write_atomically(output / "history.jsonl", history)
    names = ["model.safetensors", "metrics.json", "history.jsonl"]
    recipe = recipe_of(getattr(session.samples, "source", None))
    if recipe is not None:  # to prepare inputs in serving as in training
        write_atomically(output / "recipe.json", lambda path: path.write_text(recipe, encoding="utf-8"))
        names.append("recipe.json")
    return names


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write to a temporary file, then rename: a file with this name is always complete."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    write(beside)
    beside.replace(path)
