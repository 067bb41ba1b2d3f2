"""Activation recomputation: less memory for a third more work (torch.utils.checkpoint)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from fairlead.training.randomness import SampleDropout

Run = Callable[..., Any]


class Recompute:
    """Checkpoints functions, so that the second pass draws and changes the same as if it ran only once."""

    def __init__(
        self, dropout: SampleDropout | None, buffers: Callable[[], Sequence[torch.Tensor]], draws: bool
    ) -> None:
        self._dropout, self._buffers, self._draws = dropout, buffers, draws

    def checkpointed(self, run: Run) -> Run:
        """The same function, which keeps only its arguments for the backward pass."""

        def enable_recompute(*arguments: Any, **named: Any) -> Any:
            if not torch.is_grad_enabled():
                return run(*arguments, **named)
            return checkpoint(
                run, *arguments, use_reentrant=False, context_fn=self._contexts, preserve_rng_state=self._draws, **named
            )

        return enable_recompute

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        replay = nullcontext() if self._dropout is None else self._dropout.replay()
        return nullcontext(), self._recomputing(replay)

    @contextmanager
    def _recomputing(self, replay: AbstractContextManager[None]) -> Iterator[None]:
        saved = [(buffer, buffer.clone()) for buffer in self._buffers()]  # running means include this batch already
        try:
            with replay:
                yield
        finally:
            with torch.no_grad():
                for buffer, before in saved:
                    buffer.copy_(before)


def enable_recompute(model: torch.nn.Module, recompute: Recompute) -> list[torch.nn.Module]:
    """Checkpoint each group of layers; returns the changed modules, for :func:`disable_recompute`."""
    changed: list[torch.nn.Module] = []
    for container, children in recompute_groups(model):
        if isinstance(container, torch.nn.Sequential):
            container.forward = _in_segments(container, children, recompute)  # type: ignore[method-assign]
            changed.append(container)
            continue
        for group in children:
            module = container.get_submodule(group[0])
            module.forward = recompute.checkpointed(module.forward)
            changed.append(module)
    return changed


def disable_recompute(modules: Sequence[torch.nn.Module]) -> None:
    """Undo :func:`enable_recompute`."""
    for module in modules:
        module.__dict__.pop("forward", None)


def enable_stage_recompute(stage: torch.nn.Module, blocks: Sequence[str], recompute: Recompute) -> None:
    """Checkpoint the blocks within a traced stage; a model without blocks is checkpointed as a whole stage."""
    if not blocks:
        stage.forward = recompute.checkpointed(stage.forward)
    inside = dict(stage.named_modules())
    for name in blocks:
        if name in inside:
            inside[name].forward = recompute.checkpointed(inside[name].forward)


def block_names(model: torch.nn.Module) -> list[str]:
    """The groups that are blocks: modules with layers of their own, which a trace keeps as such."""
    paths = {id(module): name for name, module in model.named_modules()}
    firsts = [container.get_submodule(group[0]) for container, found in recompute_groups(model) for group in found]
    return [paths[id(module)] for module in firsts if next(module.children(), None) is not None]


def recompute_groups(model: torch.nn.Module) -> list[tuple[torch.nn.Module, list[list[str]]]]:
    """The outermost lists of layers, each with its children in groups that are recomputed together.

    A block of layers is a group, with the single layers after it. Single layers in a row form √n groups, so that what
    is kept at the edges and what is recomputed within are about equal.
    """
    return [(container, found) for container in layer_lists(model) if (found := _grouped(container))]


def _grouped(container: torch.nn.Module) -> list[list[str]]:
    children = list(container.named_children())
    if not isinstance(container, torch.nn.Sequential):
        return [[name] for name, child in children if next(child.parameters(), None) is not None]
    blocks = [at for at, (_, child) in enumerate(children) if next(child.children(), None) is not None]
    if not blocks:
        size = max(1, round(math.sqrt(len(children))))
        blocks = list(range(0, len(children), size))
    edges = [0, *(at for at in blocks if at), len(children)]
    names = [name for name, _ in children]
    return [names[start:stop] for start, stop in pairwise(edges)] if len(edges) > 2 else []


def layer_lists(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The lists of layers that lie in no other list."""
    if isinstance(module, torch.nn.Sequential | torch.nn.ModuleList):
        yield module
        return
    for child in module.children():
        yield from layer_lists(child)


def _in_segments(container: torch.nn.Sequential, children: Sequence[Sequence[str]], recompute: Recompute) -> Run:
    modules = dict(container.named_children())

    def segment(names: Sequence[str]) -> Run:
        def run(x: Any) -> Any:
            for name in names:
                x = modules[name](x)
            return x

        return recompute.checkpointed(run)

    segments = [segment(names) for names in children]

    def forward(x: Any) -> Any:
        for each in segments:
            x = each(x)
        return x

    return forward
