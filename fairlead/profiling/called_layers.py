"""Records which layers a pass calls, and how: only layers that run as they are written may be split by structure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairlead.training.model_probe import preserving_buffers


class LayerCalls:
    """The modules that a training pass has called, and the circumstances of their calls."""

    def __init__(self, model: nn.Module) -> None:
        modules = dict(model.named_modules())
        names = {id(module): name for name, module in modules.items()}
        uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
        self._parents: dict[str, set[str]] = defaultdict(set)
        for name, module in modules.items():
            for child in module.children():
                self._parents[names[id(child)]].add(name)
        self._owners = {id(p): name for name, module in modules.items() for p in module.parameters(recurse=False)}
        self._tied = {name for name, module in modules.items() if any(uses[id(p)] > 1 for p in module.parameters())}
        self._changed = {name for name, module in modules.items() if _is_changed(module)}
        self._active: Counter[str] = Counter()
        self.called: set[str] = set()
        self._past: set[str] = set()  # called while no parent of theirs was running
        self._bare: set[str] = set()  # their weights were read while they were not running

    def owns_weights(self, name: str) -> bool:
        """Whether this module was called, and no other code uses its weights."""
        return name in self.called and name not in self._tied and name not in self._bare

    def called_by_parent_only(self, name: str) -> bool:
        """Whether it was called only by its parent module, is unmodified and has no hooks."""
        return name in self.called and name not in self._past and name not in self._changed

    def is_unmodified(self, name: str) -> bool:
        """Whether it was called, and computes what its class does."""
        return name in self.called and name not in self._changed

    def enter(self, name: str) -> None:
        self.called.add(name)
        if not any(self._active[parent] for parent in self._parents[name]):
            self._past.add(name)
        self._active[name] += 1

    def leave(self, name: str) -> None:
        self._active[name] -= 1

    def record_read(self, value: object) -> None:
        """Record that an operation read this value; a weight belongs to its module, or to attention as a whole."""
        owner = self._owners.get(id(value))
        if owner is None or self._active[owner]:
            return
        if not (owner.endswith("out_proj") and any(self._active[parent] for parent in self._parents[owner])):
            self._bare.add(owner)


def watch_calls(model: nn.Module, inputs: Sequence[torch.Tensor]) -> LayerCalls:
    """Run the model once in training mode and record what it calls; the model is left unchanged."""
    calls = LayerCalls(model)

    def entering(name: str) -> Any:
        return lambda *_: calls.enter(name)

    def leaving(name: str) -> Any:
        return lambda *_: calls.leave(name)

    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_pre_hook(entering(name)).remove)
            stack.callback(module.register_forward_hook(leaving(name), always_call=True).remove)
        stack.enter_context(preserving_buffers(model))
        stack.enter_context(torch.no_grad())
        model.train()
        stack.enter_context(_Reading(calls))
        model(*inputs)
    return calls


class _Reading(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reports every value that an operation reads."""

    def __init__(self, calls: LayerCalls) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for each in tree_leaves((args, kwargs)):
            self._calls.record_read(each)
        return func(*args, **(kwargs or {}))


def _is_changed(module: nn.Module) -> bool:
    """Whether it has a forward function or hooks of its own."""
    return "forward" in vars(module) or bool(module._forward_hooks or module._forward_pre_hooks)
