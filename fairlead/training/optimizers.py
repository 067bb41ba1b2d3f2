"""Makes the user's optimizer, with its fastest kernel, and handles parameters that other workers train."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fairlead.errors import InvalidSpec
from fairlead.training.definition import Training

_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_BY_ELEMENT = (
    *_FUSED, torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adamax, torch.optim.ASGD, torch.optim.NAdam,
    torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop,
)  # fmt: skip
_EDGE = 4
"""Size of the test parameters in every dimension: small, and even so that they can be halved."""


def make_optimizer(training: Training, parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The user's optimizer for these parameters; AdamW if none was given."""
    make = training.optimizer or torch.optim.AdamW
    optimizer = make(list(parameters))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidSpec(
            f"the factory made {type(optimizer).__name__}", field="optimizer", fix="return a torch.optim.Optimizer"
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise InvalidSpec(
            f"{type(optimizer).__name__} calls a closure several times per step, which no worker can do "
            "for all", field="optimizer", fix="use one that takes gradients, such as torch.optim.AdamW",
        )  # fmt: skip
    use_fused_kernel(optimizer)
    return optimizer


def load_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load an optimizer's state bit by bit. torch would cast every tensor to its parameter's dtype.

    That would round float32 moments of bfloat16 parameters, and turn counters and masks into floats.
    """
    optimizer.load_state_dict(dict(saved))
    for group, numbers in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        for parameter, number in zip(group["params"], numbers["params"], strict=True):
            own = optimizer.state.get(parameter, {})
            for name, value in saved["state"].get(number, {}).items():
                if isinstance(value, torch.Tensor) and own[name].dtype != value.dtype:
                    own[name] = value.to(own[name].device, copy=True)


def why_not_sharded(training: Training, model: torch.nn.Module) -> str:
    """Why this optimizer cannot update parts of parameters; empty if it works element by element.

    torch's usual ones do. Any other is tried on small test parameters, whole and in halves, as workers would hold them.
    """
    dims = [p.dim() for p in model.parameters() if p.requires_grad]
    try:
        name, whole = _stepped(training, dims)
        alike = all(_alike(training, dims, whole, axis) for axis in (0, -1))
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        return f"the optimizer cannot be tried on parts of parameters, so only whole copies can run: {reason}"
    return "" if alike else f"{name} needs whole parameters, so no worker can hold a part of one"


def _alike(training: Training, dims: Sequence[int], whole: Sequence[torch.Tensor], axis: int) -> bool:
    """Whether optimizing halves along this axis gives the same result."""
    halves = (_stepped(training, dims, axis, at)[1] for at in (0, 1))
    joined = [torch.cat(parts, axis) if parts[0].dim() else parts[0] for parts in zip(*halves, strict=True)]
    return all(torch.allclose(one, other, 1e-9, 1e-12) for one, other in zip(whole, joined, strict=True))


def _stepped(
    training: Training, dims: Sequence[int], axis: int = 0, half: int | None = None
) -> tuple[str, list[torch.Tensor]]:
    """The optimizer's name, and test parameters, or a half of each, after a few of its steps."""
    generator = torch.Generator().manual_seed(0)

    def drawn(dim: int) -> torch.Tensor:
        made = torch.randn((_EDGE,) * dim, dtype=torch.float64, generator=generator)
        return made if half is None or not dim else made.chunk(2, axis)[half].clone()

    parameters = [torch.nn.Parameter(drawn(dim)) for dim in dims]
    optimizer = make_optimizer(training, parameters)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not held <= {id(p) for p in parameters}:
        raise ValueError("it trains parameters other than those passed to it")
    if type(optimizer) not in _BY_ELEMENT:
        for _ in range(3):
            for parameter, dim in zip(parameters, dims, strict=True):
                parameter.grad = drawn(dim)
            optimizer.step()
    return type(optimizer).__name__, [parameter.detach() for parameter in parameters]


def placeholder_parameter(shape: torch.Size, dtype: torch.dtype) -> torch.nn.Parameter:
    """Stands for a parameter that another worker trains: has its shape, without its memory."""
    return torch.nn.Parameter(torch.zeros((), dtype=dtype).expand(shape))


def drop_parameters(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]) -> None:
    """Stop training these parameters; the optimizer's groups stay, even if empty."""
    gone = {id(parameter) for parameter in parameters}
    for group in optimizer.param_groups if gone else ():
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in gone]
    for parameter in parameters:
        optimizer.state.pop(parameter, None)


def use_fused_kernel(optimizer: torch.optim.Optimizer) -> None:
    """Use the fused kernel where the user left the choice open: same maths, a third of the step saved.

    On a CPU torch itself takes the slowest of its three implementations by default (measured).
    """
    if type(optimizer) not in _FUSED or not all(_may_be_fused(group) for group in optimizer.param_groups):
        return
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
    optimizer.defaults["fused"] = True
    if isinstance(optimizer, torch.optim.SGD):
        optimizer.register_step_pre_hook(_begin_moments)


def _begin_moments(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Start missing moments at zero: the fused kernel needs the moments of all parameters or of none."""
    for group in optimizer.param_groups:
        moving = [p for p in group["params"] if p.grad is not None] if group["momentum"] else []
        new = [p for p in moving if optimizer.state[p].get("momentum_buffer") is None]
        for parameter in new if len(new) < len(moving) else ():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def _may_be_fused(group: dict[str, Any]) -> bool:
    undecided = not any(group.get(name) for name in ("fused", "foreach", "differentiable", "capturable"))
    plain = not isinstance(group["lr"], torch.Tensor) and not group.get("dampening")
    return undecided and plain and group.get("fused") is None and all(_suits(p) for p in group["params"])


def _suits(parameter: torch.Tensor) -> bool:
    return parameter.is_floating_point() and parameter.layout is torch.strided and type(parameter) in _PLAIN
