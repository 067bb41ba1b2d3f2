"""The structure of a model without its weights, kept while the model is split, so that it can be made again."""

from __future__ import annotations

import copy
from typing import Any

import torch


class ModelSkeleton:
    """The structure of a plain model: tied weights stay tied, and non-persistent buffers keep their values."""

    def __init__(self, model: torch.nn.Module) -> None:
        saved = set(model.state_dict(keep_vars=True))
        memo: dict[int, Any] = {}
        for parameter in model.parameters():
            memo[id(parameter)] = torch.nn.Parameter(
                torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad
            )
        for name, buffer in model.named_buffers():
            kept = buffer.detach().clone() if name not in saved else torch.empty_like(buffer, device="meta")
            memo[id(buffer)] = kept
        self._model = copy.deepcopy(model, memo)

    def rebuild(self, device: torch.device) -> torch.nn.Module:
        """A plain model with uninitialised weights, to be filled from a state."""
        model = copy.deepcopy(self._model)
        made: dict[int, torch.Tensor] = {}

        def real(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_meta:
                return tensor
            if id(tensor) not in made:
                empty = torch.zeros_like(tensor, device=device)
                is_parameter = isinstance(tensor, torch.nn.Parameter)
                made[id(tensor)] = torch.nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
            return made[id(tensor)]

        for module in model.modules():
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        table[name] = real(tensor)  # type: ignore[assignment]
        return model
