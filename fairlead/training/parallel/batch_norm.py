"""Batch norm over the whole global batch: ranks exchange the statistics of their parts.

torch's own SyncBatchNorm works on GPUs only and assumes that no worker is empty (measured). One thing stays in float32:
a bias right before a batch norm has a gradient of zero plus rounding, which Adam amplifies to a drift; training does
not see it, but the running mean follows it late, so that evaluations differ in the fourth digit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from fairlead.training.parallel.gradients import Ranks


class SyncedBatchNorms:
    """The batch norm layers of a model while several ranks share a batch; ``restore`` undoes the change."""

    def __init__(self, model: torch.nn.Module, group: Ranks, *, on: bool = True) -> None:
        self._group = group
        self._layers = (
            [module for module in model.modules() if isinstance(module, _BatchNorm)] if on and group.size > 1 else []
        )
        self.weight = 1.0  # 0 on a worker without samples of its own, which takes part in the exchange only
        for layer in self._layers:
            layer.forward = self._forward_of(layer)  # type: ignore[method-assign]

    def __len__(self) -> int:
        return len(self._layers)

    def restore(self) -> None:
        for layer in self._layers:
            del layer.forward
        self._layers = []

    def _forward_of(self, layer: _BatchNorm) -> Any:
        original = type(layer).forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            if not layer.training:
                result: torch.Tensor = original(layer, x)
                return result
            weight = layer.weight if layer.weight is not None else x.new_ones(x.shape[1])
            bias = layer.bias if layer.bias is not None else x.new_zeros(x.shape[1])
            y, mean, variance, count = _normalise(x, weight, bias, layer.eps, self._group, self.weight)
            _update_running(layer, mean, variance, count)
            out: torch.Tensor = y
            return out

        return forward


def _update_running(layer: _BatchNorm, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
    if layer.running_mean is None or layer.running_var is None or layer.num_batches_tracked is None:
        return
    with torch.no_grad():
        layer.num_batches_tracked.add_(1)
        momentum = layer.momentum if layer.momentum is not None else 1.0 / float(layer.num_batches_tracked)
        unbiased = variance * (count / (count - 1))
        layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), momentum)
        layer.running_var.lerp_(unbiased.to(layer.running_var.dtype), momentum)


class _Normalise(torch.autograd.Function):
    """One exchange forward (count, mean, squares around it: no cancellation) and one backward."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, group: Ranks, share: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        dims = [dim for dim in range(x.dim()) if dim != 1]
        local_variance, local_mean = torch.var_mean(x, dims, correction=0)
        own = share * x.numel() / x.shape[1]
        packed = torch.cat([x.new_tensor([own]), local_mean, local_variance * own])
        every = group.gather(packed)
        channels = x.shape[1]
        counts, means, squares = every[:, :1], every[:, 1 : channels + 1], every[:, channels + 1 :]
        count = counts.sum()
        if float(count) <= 1:
            raise ValueError("Expected more than 1 value per channel when training (batch norm on a batch of one)")
        mean = (counts * means).sum(0) / count
        variance = (squares + counts * (means - mean) ** 2).sum(0) / count
        scale = torch.rsqrt(variance + eps)
        shape = [1, channels] + [1] * (x.dim() - 2)
        normal = (x - mean.view(shape)) * scale.view(shape)
        ctx.save_for_backward(normal, weight, scale, count)
        ctx.group, ctx.share, ctx.dims, ctx.shape = group, share, dims, shape
        ctx.mark_non_differentiable(mean, variance, count)
        return normal * weight.view(shape) + bias.view(shape), mean, variance, count

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad = grads[0]
        normal, weight, scale, count = ctx.saved_tensors
        grad_bias = grad.sum(ctx.dims)
        grad_weight = (grad * normal).sum(ctx.dims)
        sums = torch.cat([grad_bias, grad_weight])
        ctx.group.sum(sums)
        mean_grad, mean_product = (sums / count * ctx.share).chunk(2)
        inner = grad - mean_grad.view(ctx.shape) - normal * mean_product.view(ctx.shape)
        return inner * (weight * scale).view(ctx.shape), grad_weight, grad_bias, None, None, None


_normalise: Callable[..., Any] = _Normalise.apply
