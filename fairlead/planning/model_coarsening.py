"""Merges neighbouring layers of a deep model, so that planning it takes no longer than a shallow one."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from fairlead.planning.profiles import Layer, ModelProfile


def coarsened(model: ModelProfile, most: int) -> ModelProfile:
    """The model with at most ``most`` layers of about equal weight; stages can be cut only between them."""
    if len(model.layers) <= most:
        return model
    weights = [layer.seconds or layer.flops for layer in model.layers]
    whole = sum(weights) or 1.0
    runs: list[list[Layer]] = []
    passed = 0.0
    for place, (layer, weight) in enumerate(zip(model.layers, weights, strict=True)):
        due = passed >= whole * len(runs) / most  # the layers so far fill the existing pieces
        left = len(model.layers) - place
        if not runs or (due and len(runs) < most) or len(runs) + left <= most:
            runs.append([])
        runs[-1].append(layer)
        passed += weight
    return replace(model, layers=tuple(_merged(run) for run in runs))


def _merged(run: Sequence[Layer]) -> Layer:
    if len(run) == 1:
        return run[0]
    groups = {layer.group for layer in run}
    return replace(
        run[0],
        parameters=sum(layer.parameters for layer in run),
        flops=sum(layer.flops for layer in run),
        activation_bytes=sum(layer.activation_bytes for layer in run),
        output_bytes=run[-1].output_bytes,
        kernels=sum(layer.kernels for layer in run),
        seconds=sum(layer.seconds for layer in run),
        splits=tuple(split for layer in run for split in layer.splits),
        split_parameters=sum(layer.split_parameters for layer in run),
        split_flops=sum(layer.split_flops for layer in run),
        split_activation_bytes=sum(layer.split_activation_bytes for layer in run),
        exchange_bytes=sum(layer.exchange_bytes for layer in run),
        exchanges=sum(layer.exchanges for layer in run),
        group=groups.pop() if len(groups) == 1 else 0,
    )
