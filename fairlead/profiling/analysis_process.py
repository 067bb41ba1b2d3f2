"""The process that profiles a user's Training: ``python -m fairlead.profiling.analysis_process REQUEST ANSWER``.

User code runs only here: the caller starts this process and reads a file of plain values.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from fairlead.errors import FairleadError, InvalidSpec
from fairlead.planning.profiles import Layer, ModelProfile, to_plain
from fairlead.profiling.model_profile import build_model, profile_model
from fairlead.profiling.step_timing import calibrate, layer_seconds
from fairlead.training.data import open_samples
from fairlead.training.definition import Training
from fairlead.training.loading import describe, load_training
from fairlead.training.samples import Samples


def analyse(run: str, params: dict[str, Any], device: str | None) -> ModelProfile:
    """The profile of the Training that ``run`` names; with ``device``, measured by a few steps on this machine."""
    torch.set_num_threads(1)
    training = load_training(run, params)
    if training.loop is not None:
        raise InvalidSpec(
            "a custom loop has no model to plan for", field="loop",
            fix="give Training a model, or run it without a plan",
        )  # fmt: skip
    model = build_model(training)
    profile = profile_model(training, model)
    if device is None:
        return profile
    return measure_profile(training, model, profile, open_samples("data", training.data, torch.device("cpu")), device)


def measure_profile(
    training: Training, model: nn.Module, profile: ModelProfile, samples: Samples, device: str
) -> ModelProfile:
    """The profile with times measured by a few steps on this machine; the steps change the model."""
    known = calibrate(training, model, samples, device)
    names = tuple("" if len(profile.layers) == 1 else layer.name for layer in profile.layers)
    spent = layer_seconds(model, names, samples, min(training.batch_size, 32))
    return msgspec.structs.replace(profile, layers=_timed(profile.layers, spent), calibration=known)


def _timed(layers: Sequence[Layer], spent: Sequence[float]) -> tuple[Layer, ...]:
    """The layers with their times; layers that are alike get the shortest time of them, to ignore disturbances."""
    alike: dict[tuple[int, float, int], list[float]] = {}
    for layer, seconds in zip(layers, spent, strict=True):
        alike.setdefault((layer.parameters, layer.flops, layer.kernels), []).append(seconds)
    return tuple(
        msgspec.structs.replace(layer, seconds=min(alike[layer.parameters, layer.flops, layer.kernels]))
        for layer in layers
    )


def main(request: str, answer: str) -> int:
    """Read the request, write the profile or the error."""
    wanted = json.loads(Path(request).read_text(encoding="utf-8"))
    try:
        profile = analyse(wanted["run"], wanted.get("params", {}), wanted.get("device"))
    except FairleadError as error:
        Path(answer).write_text(json.dumps({"problem": error.problem()}), encoding="utf-8")
        return 1
    except Exception as error:  # noqa: BLE001 (the edge of the process: whatever user code raises is told in one line)
        line, trace = describe(error)
        Path(answer).write_text(json.dumps({"error": line, "trace": trace}), encoding="utf-8")
        return 1
    Path(answer).write_text(json.dumps({"profile": to_plain(profile)}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
