"""Divides a model into units in execution order, and finds where it can be cut into pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from fairlead.profiling.forward_trace import size_of, tensors

MOST_UNITS = 48
"""The most units of a model; more would cost search time and gain nothing."""

_SHARE = 1 / 12
"""A module with more than this part of the model's parameters is divided into its children."""

_WHOLE = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.MultiheadAttention, nn.RNNBase)
"""Modules that are never divided: their children cannot run on their own."""


@dataclass(frozen=True, slots=True)
class Units:
    """Submodules in execution order; ``crossing[i]`` bytes would cross a cut before unit ``i``."""

    names: tuple[str, ...]
    crossing: tuple[float, ...] = ()  # of the traced batch; empty: unknown, use the units' outputs
    why_not_cut: str = ""  # empty: the model can be cut between units


def find_units(model: nn.Module, inputs: Sequence[torch.Tensor]) -> Units:
    """The units of a model: by its structure if it is a plain sequence, else by tracing it."""
    tied = _tied(model)
    if tied:
        return Units(("",), why_not_cut=f"{tied} is shared by several layers, so the model cannot be cut into stages")
    chain = _chain(model, "")
    if chain is not None and len(chain) > 1:
        return Units(tuple(_limit_units(chain, model)))
    try:
        program = torch.export.export(model, tuple(inputs), strict=False)
    except Exception as error:  # noqa: BLE001 (whatever tracing meets in user code only means: not by stages)
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        return Units(("",), why_not_cut=f"the model cannot be traced, so only whole copies of it can run: {reason}")
    if _has_other_outputs(program, len(inputs[0]) if inputs else 0):
        return Units(
            ("",), why_not_cut="the model returns more than one value per row, so it cannot be cut into stages"
        )
    return _traced(model, program)


def _has_other_outputs(program: torch.export.ExportedProgram, rows: int) -> bool:
    """Whether an output is not a tensor with a value per row: micro-batches pass on nothing else."""
    nodes = {node.name: node for node in program.graph.nodes}
    given = [nodes[each].meta.get("val") if each in nodes else None for each in program.graph_signature.user_outputs]
    return not all(isinstance(each, torch.Tensor) and each.dim() > 0 and len(each) == rows for each in given)


def _tied(model: nn.Module) -> str:
    """The name of a parameter that two modules share; empty if there is none."""
    seen: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in seen:
            return name
        seen[id(parameter)] = name
    return ""


def _chain(module: nn.Module, name: str) -> list[str] | None:
    """The children of nested ``nn.Sequential``s in order; None for any other module."""
    if type(module) is not nn.Sequential:
        return None
    found: list[str] = []
    for key, child in module.named_children():
        path = f"{name}.{key}" if name else key
        found += _chain(child, path) or [path]
    return found


def _limit_units(names: Sequence[str], model: nn.Module) -> list[str]:
    """At most MOST_UNITS: units without parameters join the one before them, then every other one is dropped."""
    kept = [name for at, name in enumerate(names) if at == 0 or _learns(model.get_submodule(name))]
    while len(kept) > MOST_UNITS:
        kept = kept[::2]
    return kept


def _learns(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _traced(model: nn.Module, program: Any) -> Units:
    """Modules that the traced graph enters once, one after the other, with the bytes that cross each entry."""
    nodes = list(program.graph.nodes)
    entries: dict[str, list[int]] = {}
    for at, node in enumerate(nodes):
        for path in _paths(node):
            entries.setdefault(path, []).append(at)
    names = _worth_cutting(model, entries)
    late = _last_use_of_inputs(program, nodes)
    names = [name for place, name in enumerate(names) if place == 0 or entries[name][0] > late]
    crossing = [_live_bytes(program, nodes, entries[name][0]) for name in names]
    return Units(tuple(names), tuple(crossing)) if names else Units(("",))


def _last_use_of_inputs(program: Any, nodes: Sequence[Any]) -> int:
    """The last node that uses the model's inputs, which only the first stage gets."""
    inputs = set(program.graph_signature.user_inputs)
    users = {user for node in nodes if node.op == "placeholder" and node.name in inputs for user in node.users}
    return max((at for at, node in enumerate(nodes) if node in users and node.op != "output"), default=-1)


def _paths(node: Any) -> list[str]:
    stack = node.meta.get("nn_module_stack") or {}
    return [str(path).removeprefix("L['self'].") for path, _ in stack.values() if path]


def _worth_cutting(model: nn.Module, entries: dict[str, list[int]]) -> list[str]:
    """From the top down: replaces a large module by its children if these run one after the other."""
    modules = dict(model.named_modules())
    total = sum(parameter.numel() for parameter in model.parameters()) or 1

    def inside(name: str) -> list[str]:
        prefix = f"{name}." if name else ""
        below = [path for path in entries if path != name and path.startswith(prefix) and path in modules]
        direct = [path for path in below if _learns(modules[path])]  # modules without parameters may be called anywhere
        tops = [path for path in direct if not any(path.startswith(f"{other}.") for other in direct)]
        ordered = sorted(tops, key=lambda path: entries[path][0])
        apart = all(entries[a][-1] < entries[b][0] for a, b in pairwise(ordered))
        return ordered if apart else []

    def parts(name: str) -> list[str]:
        module = modules[name]
        own = sum(parameter.numel() for parameter in module.parameters())
        below = inside(name) if not isinstance(module, _WHOLE) and (not name or own > total * _SHARE) else []
        return [leaf for path in below for leaf in parts(path)] if below else [name]

    return _limit_units([name for name in parts("") if name], model)


def _live_bytes(program: Any, nodes: Sequence[Any], at: int) -> float:
    """Bytes of all values made before this node and used at it or later, besides parameters and buffers."""
    signature = program.graph_signature
    held = {*signature.inputs_to_parameters, *signature.inputs_to_buffers}
    place = {node: position for position, node in enumerate(nodes)}
    total = 0.0
    for node in nodes[:at]:
        if node.op == "placeholder" and node.name in held:
            continue
        if any(place[user] >= at for user in node.users):
            total += sum(size_of(value) for value in tensors(node.meta.get("val")))
    return total
