"""A Training becomes a ModelProfile: its layers, what they compute and keep, how they may be cut."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fairlead.errors import InvalidSpec
from fairlead.planning.profiles import Layer, ModelProfile
from fairlead.profiling.forward_trace import ForwardTrace, passing_bytes, size_of, watch
from fairlead.profiling.model_units import Units, find_units
from fairlead.profiling.tensor_splits import LayerSplit, degree_limit, try_cuts
from fairlead.training.data import check_batch, open_samples
from fairlead.training.definition import Training
from fairlead.training.model_probe import compute_loss, find_kept_state, probe_model, trainable_parameters
from fairlead.training.optimizers import make_optimizer, why_not_sharded
from fairlead.training.parallel.recompute import block_names, recompute_groups
from fairlead.training.precision import requested_dtype
from fairlead.training.samples import Samples
from fairlead.training.seeds import seed_everything

OWN_STEP = "the model has a training step of its own, so only whole copies of it can run"
HELD = {"column": 1, "heads": 4}
"""Activations that lie on several workers, in sizes of the output: of attention queries, keys, values and their mix."""
ROWS = 4
"""Samples in the batch that is looked at; enough for layers that need more than one."""


def build(training: Training) -> nn.Module:
    """The model itself, on the cpu, as every worker makes it."""
    seed_everything(training.seed)
    model = training.model if isinstance(training.model, nn.Module) else training.model()
    if not isinstance(model, nn.Module):
        raise InvalidSpec(f"made {type(model).__name__}, not an nn.Module", field="model")
    return model


def take_rows(samples: Samples, count: int) -> tuple[torch.Tensor, ...]:
    """The first samples, again and again if there are too few."""
    taken: tuple[torch.Tensor, ...] = samples.take(torch.arange(count) % len(samples), 0)
    return taken


def profile_model(training: Training, model: nn.Module | None = None, samples: Samples | None = None) -> ModelProfile:
    """What the planner needs to know, found without running the model in full.

    ``samples`` are some of the data where not all of it is at hand: how many there are says nothing about the batch.
    """
    model = build(training) if model is None else model
    if samples is None:
        samples = open_samples("data", training.data, torch.device("cpu"))
        check_batch(training.batch_size, len(samples))
    rows = take_rows(samples, ROWS)
    own_step = training.loss is None
    trainable_parameters(model)
    probe_model(model, training.loss, rows)  # first: it gives lazy layers their shapes
    state = "" if own_step else find_kept_state(model, rows[:-1])
    partial = "" if own_step else why_not_sharded(training, model)
    cuts, untried = ([], "") if own_step or partial else try_cuts(model, rows[:-1])
    units = Units(("",), whole=OWN_STEP) if own_step else find_units(model, rows[:-1])
    if state:
        units = Units(("",), whole=f"{state} changes in every pass, so the model cannot be cut into stages")
    seen, said = _watched(model, training.loss, rows, units, cuts)
    again = _computed_again(model, units.names)
    layers = tuple(_layer(model, seen, units, cuts, at, again[at]) for at in range(len(units.names)))
    return ModelProfile(
        layers=layers, batch_size=training.batch_size, samples=len(samples),
        sample_bytes=sum(size_of(column) for column in rows) / ROWS, state_bytes=_state_bytes(training),
        parameter_bytes=_width(model), gradient_bytes=_width(model), tensor_limit=degree_limit(cuts),
        batch_norm=sum(isinstance(module, _BatchNorm) for module in model.modules()),
        working_bytes=_working_bytes(model, training.loss, rows, sum(layer.activation_bytes for layer in layers)),
        limits=tuple(reason for reason in (units.whole, partial, untried, said) if reason), exact=training.exact,
        dtype="float32" if requested_dtype(training) is None else "bfloat16", copies_only=own_step or bool(partial),
        blocks=bool(block_names(model)),
    )  # fmt: skip


def _watched(
    model: nn.Module, loss: Any, rows: tuple[torch.Tensor, ...], units: Units, cuts: Sequence[LayerSplit]
) -> tuple[ForwardTrace, str]:
    """Under meta tensors, which cost nothing; a model that looks at its numbers is run for real on a few samples."""
    names = [cut.name for cut in cuts]
    try:
        ghost = copy.deepcopy(model).to("meta").train()
        given = tuple(tensor.to("meta") for tensor in rows)
        return watch(ghost, units.names, names, lambda: _forward(ghost, loss, given)), ""
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
    real = copy.deepcopy(model).train()
    seen = watch(real, units.names, names, lambda: _forward(real, loss, rows))
    return seen, f"its sizes were found by running it, because it cannot be computed without its numbers: {reason}"


def _working_bytes(model: nn.Module, loss: Any, rows: tuple[torch.Tensor, ...], kept: float) -> float:
    """What a pass needs for moments, per sample, on top of the activations that are kept."""
    try:
        ghost = copy.deepcopy(model).to("meta").train()
        given = tuple(tensor.to("meta") for tensor in rows)
        return max(0.0, passing_bytes(ghost, lambda: _forward(ghost, loss, given)) / ROWS - kept)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return kept / 4  # one that looks at its numbers: a guess


def _forward(model: nn.Module, loss: Any, rows: tuple[torch.Tensor, ...]) -> Any:
    """The model's own step where it has one; else without the loss, which may look at its numbers."""
    return compute_loss(model, None, rows) if loss is None else model(*rows[:-1])


def _layer(
    model: nn.Module, seen: ForwardTrace, units: Units, cuts: Sequence[LayerSplit], at: int, group: int
) -> Layer:
    names = units.names
    record = seen.units[names[at]]
    last = at == len(names) - 1
    handed = 0.0 if last else units.crossing[at + 1] if units.crossing else record.output_bytes
    owned = _owned(model, names, at)
    inside = [cut for cut in cuts if _owner(names, cut.name) == at and cut.name in seen.layers]
    counted = [cut for cut in inside if not _only_counts(model, cut)]
    split = sum(_parameters(model.get_submodule(cut.name)) for cut in counted)
    sizes = {cut.name: seen.layers[cut.name] for cut in counted}
    return Layer(
        name=names[at] or "model", parameters=owned, frozen_bytes=_frozen_bytes(model, names, at),
        buffer_bytes=sum(size_of(each) for path, each in model.named_buffers() if _owner(names, _holder(path)) == at),
        flops=record.flops / ROWS, kernels=max(1, record.kernels),
        activation_bytes=record.kept_bytes / ROWS, output_bytes=handed / ROWS,
        splits=tuple((cut.name, cut.how) for cut in inside), split_parameters=min(split, owned),
        split_flops=min(record.flops, sum(flops for _, _, flops in sizes.values())) / ROWS,
        split_activation_bytes=_divided_bytes(record.kept, counted, sizes) / ROWS,
        exchange_bytes=sum(_exchanged(cut, sizes[cut.name]) for cut in counted) / ROWS,
        exchanges=sum(2 if cut.how == "heads" else 1 for cut in counted), group=group,
    )  # fmt: skip


def _divided_bytes(
    kept: Sequence[float], cuts: Sequence[LayerSplit], sizes: Mapping[str, tuple[float, float, float]]
) -> float:
    """Of the activations that are kept: what tensor parallelism divides.

    All that is as wide as what a column gives lies between it and the row that follows (its masks are a quarter as
    large), unless something that stays whole is as wide. Then it is the column's own output alone.
    """
    columns = {sizes[cut.name][1] for cut in cuts if cut.how == "column"}
    whole = {sizes[cut.name][0 if cut.how == "column" else 1] for cut in cuts}
    between = columns - whole - {size / 4 for size in whole}
    divided = sum(size for size in kept if size in between or 4 * size in between)
    others = [cut for cut in cuts if sizes[cut.name][1] not in between]
    return divided + sum(HELD.get(cut.how, 0) * sizes[cut.name][1] for cut in others)


def _only_counts(model: nn.Module, cut: LayerSplit) -> bool:
    """Whether it stands for a number of heads, and the layers are cut by themselves."""
    return cut.how == "heads" and not isinstance(model.get_submodule(cut.name), nn.MultiheadAttention)


def _exchanged(cut: LayerSplit, sizes: tuple[float, float, float]) -> float:
    """Bytes that are summed over the tensor group: gradients of what came in, or outputs."""
    came, went, _ = sizes
    if cut.how == "heads":
        return 2 * went  # gradients of what came in are as large, however often it was handed over
    if cut.how == "column":
        return came
    return came + went / 2 if cut.how == "column-gathered" else went


def _computed_again(model: nn.Module, names: Sequence[str]) -> list[int]:
    """The group of each unit under recomputation, as training makes them; -1: it lies in none, or spans several."""
    paths = {id(module): name for name, module in model.named_modules()}
    found, number = [-1] * len(names), 0
    for container, children in recompute_groups(model):
        prefix = f"{paths[id(container)]}." if paths[id(container)] else ""
        for group in children:
            number += 1
            inside = tuple(f"{prefix}{child}." for child in group)
            found = [number if f"{name}.".startswith(inside) else old for name, old in zip(names, found, strict=True)]
    return found


def _owner(names: Sequence[str], path: str) -> int:
    """The unit that a module belongs to: the one that it lies in, or the first."""
    inside = [at for at, name in enumerate(names) if not name or path == name or path.startswith(f"{name}.")]
    return inside[-1] if inside else 0


def _holder(path: str) -> str:
    """The module of a parameter or buffer."""
    return path.rpartition(".")[0]


def _owned(model: nn.Module, names: Sequence[str], at: int) -> int:
    return sum(
        parameter.numel()
        for path, parameter in model.named_parameters()
        if parameter.requires_grad and _owner(names, _holder(path)) == at
    )


def _frozen_bytes(model: nn.Module, names: Sequence[str], at: int) -> float:
    return sum(
        size_of(parameter)
        for path, parameter in model.named_parameters()
        if not parameter.requires_grad and _owner(names, _holder(path)) == at
    )


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _width(model: nn.Module) -> float:
    """Bytes per parameter, on average."""
    sizes = [(p.numel(), p.numel() * p.element_size()) for p in model.parameters()]
    return sum(size for _, size in sizes) / sum(count for count, _ in sizes) if sizes else 4.0


def _state_bytes(training: Training) -> float:
    """Of the optimiser per parameter, seen on a small one."""
    probe = nn.Parameter(torch.zeros(1024))
    try:
        optimizer = make_optimizer(training, [probe])
        probe.grad = torch.ones_like(probe)
        optimizer.step()
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError):
        return 8.0  # an optimiser that wants to know its model: as large as Adam's
    states = [value for state in optimizer.state.values() for value in state.values()]
    return sum(size_of(value) for value in states if isinstance(value, torch.Tensor) and value.numel() > 1) / 1024
