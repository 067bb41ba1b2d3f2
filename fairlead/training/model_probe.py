"""Probes a model before it trains: is its loss a mean, which random numbers does it draw, which buffers change."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from fairlead.errors import InvalidSpec
from fairlead.training.lightning import step_loss
from fairlead.training.randomness import RandomUse, Recorder, compare
from fairlead.training.samples import Batch

PROBE_SAMPLES = 8
_OWN = frozenset(vars(torch.nn.Module()))
"""Attributes that every module has."""

SIZES = (5, 3)
"""Two small batches of unlike sizes: a dimension that follows the size of the batch belongs to the samples."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What the training loop must know about the model."""

    random: RandomUse
    changing: tuple[str, ...]  # buffers that a forward pass in training mode changes
    warnings: tuple[str, ...] = ()
    state: tuple[str, ...] = ()  # attributes that every pass changes: a counter, a hidden state


def compute_loss(model: torch.nn.Module, loss: Any, batch: Batch) -> torch.Tensor:
    """Forward pass and loss of one batch; its last column is the target. ``loss`` None: the model computes its own."""
    if loss is None:
        return step_loss(model, batch)
    result: torch.Tensor = loss(model(*batch[:-1]), batch[-1])
    return result


def slice_batch(batch: Batch, start: int, stop: int) -> Batch:
    return tuple(column[start:stop] for column in batch)


def check_loss(model: torch.nn.Module, loss: Any, batch: Batch) -> None:
    """Refuse a loss that is not a mean over the samples: its gradient would depend on how the batch is split."""
    size = len(batch[-1])
    if size < 2:
        return
    cut = max(1, size * 2 // 3)
    with preserving_buffers(model), torch.no_grad():
        model.eval()
        with Recorder() as recorder:
            whole = compute_loss(model, loss, batch)
        if not isinstance(whole, torch.Tensor) or whole.numel() != 1:
            shape = (
                f"a tensor of shape {tuple(whole.shape)}" if isinstance(whole, torch.Tensor) else type(whole).__name__
            )
            raise InvalidSpec(
                f"returns {shape}, not one number",
                field="loss",
                fix='average over the samples, for instance with reduction="mean"',
            )
        if recorder.others:
            return  # it draws random numbers even in eval mode, so two calls cannot be compared
        parts = [float(compute_loss(model, loss, slice_batch(batch, *ends))) for ends in ((0, cut), (cut, size))]
    mean = (parts[0] * cut + parts[1] * (size - cut)) / size
    if (
        math.isfinite(float(whole))
        and math.isfinite(mean)
        and not math.isclose(float(whole), mean, rel_tol=1e-3, abs_tol=1e-5)
    ):
        raise InvalidSpec(
            f"is not a mean over the samples: {float(whole):.6g} on {size} of them, but {mean:.6g} by halves",
            field="loss",
            fix='use reduction="mean" without class weights or ignored targets, or divide by the number of samples',
        )


def module_attributes(model: torch.nn.Module) -> dict[str, Any]:
    """The values of all modules' own attributes, for comparison: all but parameters and buffers."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        if not isinstance(module, LazyModuleMixin):  # its first pass creates its parameters
            for name, value in vars(module).items():
                if name not in _OWN:
                    found[f"{path}.{name}" if path else name] = _frozen(value)
    return found


def find_kept_state(model: torch.nn.Module, inputs: Batch) -> str:
    """An attribute that every pass changes even with gradients enabled; empty if there is none."""
    size = min(SIZES[0], len(inputs[0]))
    kept: dict[str, Any] = {}
    with preserving_buffers(model), torch.enable_grad():
        model.train()
        for _ in range(2):  # the first pass may fill caches
            kept = module_attributes(model)
            model(*slice_batch(inputs, 0, size))
    return next((name for name, value in module_attributes(model).items() if name in kept and kept[name] != value), "")


def _frozen(value: Any) -> Any:
    """A comparable copy of the value; the identity of one that is neither plain nor a tensor."""
    if isinstance(value, torch.Tensor):
        if isinstance(value, torch.nn.Parameter) or value.layout is not torch.strided or value.is_meta:
            return id(value)
        flat = value.detach().cpu().contiguous().reshape(-1)
        return (value.shape, hashlib.blake2b(flat.view(torch.uint8).numpy().data).digest())
    if isinstance(value, float):
        return repr(value)  # nan equals nan
    if isinstance(value, list | tuple):
        return [_frozen(each) for each in value]
    if isinstance(value, dict):
        return {key: _frozen(each) for key, each in value.items()}
    return value if isinstance(value, str | int | complex | bool | None) else id(value)


def probe_model(model: torch.nn.Module, loss: Any, batch: Batch) -> Findings:
    """Run the model in training mode on two small batches and note what it does; the model is left unchanged."""
    _check_kinds(model)
    before, kept = _copies(model), module_attributes(model)
    recorders = (Recorder(), Recorder())
    sizes = (min(SIZES[0], len(batch[-1])), min(SIZES[1], max(1, len(batch[-1]) - 1)))
    with preserving_buffers(model), torch.no_grad():
        model.train()
        for recorder, size in zip(recorders, sizes, strict=True):
            if size > 1 or not has_batch_norm(model):
                kept = module_attributes(model)  # taken last after the first pass, which may fill caches
                with recorder:
                    compute_loss(model, loss, slice_batch(batch, 0, size))
        state = tuple(name for name, value in module_attributes(model).items() if name in kept and kept[name] != value)
        changing = tuple(name for name, buffer in model.named_buffers() if not _same(before.get(name), buffer))
    random = compare(recorders[0], recorders[1], sizes)
    return Findings(random, changing, tuple(_warnings(model, random, changing, state)), state)


def prefers_channels_last(model: torch.nn.Module) -> bool:
    """Whether channels-last images are faster: for convolutions on a CPU they are."""
    convolves = any(isinstance(module, torch.nn.Conv2d) for module in model.modules())
    return convolves and all(p.device.type == "cpu" for p in model.parameters())


def _check_kinds(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            raise InvalidSpec(f"layer {name} makes sparse gradients", field="model", fix="pass sparse=False")
    for name, parameter in model.named_parameters():
        if parameter.is_complex():
            fix = "keep two real ones, and torch.view_as_complex in forward"
            raise InvalidSpec(f"parameter {name} is complex", field="model", fix=fix)


def trainable_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters that are trained; refuses a model without any."""
    found = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not found:
        raise InvalidSpec("has no parameters to train", field="model", fix="leave requires_grad on for some of them")
    return found


def require_gradient(loss: torch.Tensor) -> torch.Tensor:
    """The loss, if it has a gradient; else a pipeline would silently train nothing."""
    if not loss.requires_grad:
        fix = "compute it by torch functions, without detach(), item() or no_grad()"
        raise InvalidSpec("has no gradient, so nothing would be trained", field="loss", fix=fix)
    return loss


def has_batch_norm(model: torch.nn.Module) -> bool:
    """Whether a sample's output depends on the other samples of its batch."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def _copies(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    buffers = model.named_buffers()
    return {name: b.detach().clone() for name, b in buffers if not is_lazy(b)}


def _same(before: torch.Tensor | None, after: torch.Tensor) -> bool:
    return before is not None and before.shape == after.shape and torch.equal(before, after)


def _warnings(
    model: torch.nn.Module, random: RandomUse, changing: tuple[str, ...], state: tuple[str, ...]
) -> Iterator[str]:
    if state:
        yield f"{', '.join(state[:3])} changes in every pass: results may depend on the number of workers"
    if random.others:
        drawn = ", ".join(random.others)
        yield f"the model draws random numbers itself ({drawn}): results depend on the number of workers"
    if None in random.layouts:
        yield "a dropout mask does not follow the samples: results depend on the number of workers"
    synced = {name for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    own = [name for name in changing if name.rpartition(".")[0] not in synced]
    if own:
        yield f"buffers {', '.join(own[:3])} are kept per worker: results depend on the number of workers"


@contextmanager
def preserving_buffers(model: torch.nn.Module) -> Iterator[None]:
    """Restore buffers and training mode at the end of the block."""
    saved = _copies(model)
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for name, buffer in model.named_buffers():
            if name in saved and saved[name].shape == buffer.shape:
                buffer.copy_(saved[name])
        for module, mode in modes:
            module.training = mode
