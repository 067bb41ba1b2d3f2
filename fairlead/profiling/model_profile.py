"""Profiles a Training for the planner: its layers, what they compute and keep, how they can be split."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fairlead.errors import InvalidSpec
from fairlead.planning.profiles import Layer, ModelProfile
from fairlead.profiling.forward_trace import ForwardTrace, peak_activation_bytes, size_of, trace_forward
from fairlead.profiling.model_units import Units, find_units
from fairlead.profiling.tensor_splits import LayerSplit, degree_limit, try_splits
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
"""Activations that are divided among workers, in sizes of the output: attention has q, k, v and their mix."""
ROWS = 4
"""Samples in the traced batch; enough for layers that need more than one."""


def build_model(training: Training) -> nn.Module:
    """The model on the CPU, as every worker makes it."""
    seed_everything(training.seed)
    model = training.model if isinstance(training.model, nn.Module) else training.model()
    if not isinstance(model, nn.Module):
        raise InvalidSpec(f"made {type(model).__name__}, not an nn.Module", field="model")
    return model


def take_rows(samples: Samples, count: int) -> tuple[torch.Tensor, ...]:
    """The first ``count`` samples, repeated if there are fewer."""
    taken: tuple[torch.Tensor, ...] = samples.take(torch.arange(count) % len(samples), 0)
    return taken


def profile_model(training: Training, model: nn.Module | None = None, samples: Samples | None = None) -> ModelProfile:
    """The planner's profile of the model, found without running it in full.

    ``samples`` are part of the data where not all of it is available; their number does not limit the batch.
    """
    model = build_model(training) if model is None else model
    if samples is None:
        samples = open_samples("data", training.data, torch.device("cpu"))
        check_batch(training.batch_size, len(samples))
    rows = take_rows(samples, ROWS)
    own_step = training.loss is None
    trainable_parameters(model)
    probe_model(model, training.loss, rows)  # first: it gives lazy layers their shapes
    state = "" if own_step else find_kept_state(model, rows[:-1])
    partial = "" if own_step else why_not_sharded(training, model)
    cuts, untried = ([], "") if own_step or partial else try_splits(model, rows[:-1])
    units = Units(("",), why_not_cut=OWN_STEP) if own_step else find_units(model, rows[:-1])
    if state:
        units = Units(("",), why_not_cut=f"{state} changes in every pass, so the model cannot be cut into stages")
    seen, note = _trace_model(model, training.loss, rows, units, cuts)
    again = _recompute_groups_of(model, units.names)
    layers = tuple(_layer(model, seen, units, cuts, at, again[at]) for at in range(len(units.names)))
    return ModelProfile(
        layers=layers, batch_size=training.batch_size, samples=len(samples),
        sample_bytes=sum(size_of(column) for column in rows) / ROWS, state_bytes=_state_bytes(training),
        parameter_bytes=_width(model), gradient_bytes=_width(model), tensor_limit=degree_limit(cuts),
        batch_norm=sum(isinstance(module, _BatchNorm) for module in model.modules()),
        working_bytes=_working_bytes(model, training.loss, rows, sum(layer.activation_bytes for layer in layers)),
        limits=tuple(reason for reason in (units.why_not_cut, partial, untried, note) if reason), exact=training.exact,
        dtype="float32" if requested_dtype(training) is None else "bfloat16", copies_only=own_step or bool(partial),
        blocks=bool(block_names(model)),
    )  # fmt: skip


def _trace_model(
    model: nn.Module, loss: Any, rows: tuple[torch.Tensor, ...], units: Units, cuts: Sequence[LayerSplit]
) -> tuple[ForwardTrace, str]:
    """Trace on meta tensors, which cost nothing; a model that needs its values is run on a few samples."""
    names = [cut.name for cut in cuts]
    try:
        ghost = copy.deepcopy(model).to("meta").train()
        given = tuple(tensor.to("meta") for tensor in rows)
        return trace_forward(ghost, units.names, names, lambda: _forward(ghost, loss, given)), ""
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
    real = copy.deepcopy(model).train()
    seen = trace_forward(real, units.names, names, lambda: _forward(real, loss, rows))
    return seen, f"its sizes were measured by running it, because it cannot be traced without values: {reason}"


def _working_bytes(model: nn.Module, loss: Any, rows: tuple[torch.Tensor, ...], kept: float) -> float:
    """Temporary memory of a pass, per sample, beyond the activations that are kept."""
    try:
        ghost = copy.deepcopy(model).to("meta").train()
        given = tuple(tensor.to("meta") for tensor in rows)
        return max(0.0, peak_activation_bytes(ghost, lambda: _forward(ghost, loss, given)) / ROWS - kept)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return kept / 4  # a model that needs its values: an estimate


def _forward(model: nn.Module, loss: Any, rows: tuple[torch.Tensor, ...]) -> Any:
    """The model's own training step if it has one; else the forward pass without the loss, which may need values."""
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
    """The part of the kept activations that tensor parallelism divides.

    Tensors as wide as a column layer's output lie between it and the row layer that follows (its masks are a quarter as
    large), unless an undivided tensor is as wide. Then only the column layer's own output counts.
    """
    columns = {sizes[cut.name][1] for cut in cuts if cut.how == "column"}
    whole = {sizes[cut.name][0 if cut.how == "column" else 1] for cut in cuts}
    between = columns - whole - {size / 4 for size in whole}
    divided = sum(size for size in kept if size in between or 4 * size in between)
    others = [cut for cut in cuts if sizes[cut.name][1] not in between]
    return divided + sum(HELD.get(cut.how, 0) * sizes[cut.name][1] for cut in others)


def _only_counts(model: nn.Module, cut: LayerSplit) -> bool:
    """Whether the split only divides a number of heads, while the layers have splits of their own."""
    return cut.how == "heads" and not isinstance(model.get_submodule(cut.name), nn.MultiheadAttention)


def _exchanged(cut: LayerSplit, sizes: tuple[float, float, float]) -> float:
    """Bytes that the tensor group sums: gradients of the input, or outputs."""
    came, went, _ = sizes
    if cut.how == "heads":
        return 2 * went  # the input's gradients are as large, even if one tensor is q, k and v
    if cut.how == "column":
        return came
    return came + went / 2 if cut.how == "column-gathered" else went


def _recompute_groups_of(model: nn.Module, names: Sequence[str]) -> list[int]:
    """The recomputation group of each unit, as training forms them; -1: in no group, or in several."""
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
    """The unit that contains a module, or the first one."""
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
    """Average bytes per parameter."""
    sizes = [(p.numel(), p.numel() * p.element_size()) for p in model.parameters()]
    return sum(size for _, size in sizes) / sum(count for count, _ in sizes) if sizes else 4.0


def _state_bytes(training: Training) -> float:
    """Bytes of optimiser state per parameter, measured on a small one."""
    probe = nn.Parameter(torch.zeros(1024))
    try:
        optimizer = make_optimizer(training, [probe])
        probe.grad = torch.ones_like(probe)
        optimizer.step()
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError):
        return 8.0  # an optimiser that needs the model: assume Adam's size
    states = [value for state in optimizer.state.values() for value in state.values()]
    return sum(size_of(value) for value in states if isinstance(value, torch.Tensor) and value.numel() > 1) / 1024
