"""LightningModules and other models with training_step and configure_optimizers of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fairlead.errors import InvalidSpec


@dataclass(frozen=True, slots=True)
class ConfiguredOptimizers:
    """What ``configure_optimizers`` returned: one optimizer, an optional scheduler, and when that steps."""

    optimizer: torch.optim.Optimizer
    scheduler: Any = None
    every: str = "epoch"


def has_training_step(model: Any) -> bool:
    return callable(getattr(model, "training_step", None)) and callable(getattr(model, "configure_optimizers", None))


def step_loss(model: Any, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The loss of one batch, from the model's ``training_step``."""
    return _loss(model.training_step(batch, 0), "training_step")


def validation_loss(model: Any, batch: tuple[torch.Tensor, ...]) -> float:
    """The loss on evaluation data: from ``validation_step`` if it returns one, else from ``training_step``."""
    validate = getattr(model, "validation_step", None)
    made = validate(batch, 0) if callable(validate) else None
    return float(step_loss(model, batch) if made is None else _loss(made, "validation_step"))


def _loss(made: Any, where: str) -> torch.Tensor:
    loss = made.get("loss", made.get("val_loss")) if isinstance(made, Mapping) else made
    if not isinstance(loss, torch.Tensor):
        raise InvalidSpec(f"{where} returned {type(loss).__name__}", field="model", fix="return the loss as a tensor")
    return loss


def configure_optimizers(model: Any) -> ConfiguredOptimizers:
    """Call the model's ``configure_optimizers`` and read its result; several optimizers are refused."""
    made: Any = model.configure_optimizers()
    schedulers: Any = None
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], list | tuple):
        made, schedulers = made
    elif isinstance(made, Mapping):
        schedulers, made = made.get("lr_scheduler"), made.get("optimizer")
    optimizer, scheduler = _only(made, "optimizers"), _only(schedulers, "schedulers")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidSpec(
            f"configure_optimizers made {type(optimizer).__name__}", field="model", fix="return a torch.optim.Optimizer"
        )
    if isinstance(scheduler, Mapping):
        return ConfiguredOptimizers(optimizer, scheduler["scheduler"], str(scheduler.get("interval", "epoch")))
    return ConfiguredOptimizers(optimizer, scheduler)


def _only(found: Any, what: str) -> Any:
    if not isinstance(found, list | tuple):
        return found
    if len(found) > 1:
        raise InvalidSpec(f"configure_optimizers made {len(found)} {what}", field="model", fix="return one of them")
    return found[0] if found else None
