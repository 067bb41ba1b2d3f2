"""A traced model cut into pipeline stages, and what each of them draws."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.pipelining import Pipe, SplitPoint, pipeline
from torch.utils import _pytree as pytree

from fairlead.errors import InvalidSpec
from fairlead.planning.plan import Plan
from fairlead.training.model_probe import undisturbed
from fairlead.training.parallel.tensor_collectives import close_traced, seams_of
from fairlead.training.randomness import Recorder


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """The whole model in stages, the number of masks that the stages before each one draw, and what it gives."""

    pipe: Pipe
    first_masks: tuple[int, ...]
    output: pytree.TreeSpec  # what the last stage's tensors are parts of


def trace(model: torch.nn.Module, plan: Plan, inputs: Sequence[torch.Tensor]) -> Traced:
    """Cut the model where the plan says. One that cannot be traced, or shares weights over a cut, is refused."""
    ties = _ties(model)
    output = _output_of(model, inputs)
    try:
        pipe = pipeline(model, mb_args=tuple(inputs), split_spec=dict.fromkeys(plan.cuts, SplitPoint.BEGINNING))
    except (RuntimeError, AttributeError, AssertionError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidSpec(
            f"cannot be traced: {reason[:200]}", field="model", fix="choose a plan without pipeline"
        ) from error
    if pipe.num_stages != plan.stages:
        raise InvalidSpec(
            f"has {pipe.num_stages} stages with cuts at {', '.join(plan.cuts)}, not {plan.stages}", field="plan.cuts",
            fix="name submodules that are called once, in their order",
        )  # fmt: skip
    stages = [pipe.get_stage_module(place) for place in range(plan.stages)]
    _check_ties(stages, ties)
    if sum(node.op == "placeholder" for node in stages[0].graph.nodes) != len(inputs):  # type: ignore[union-attr]
        raise InvalidSpec(
            "has an input that its first stage does not use", field="plan.cuts",
            fix="cut later, or choose a plan without pipeline",
        )  # fmt: skip
    for stage in stages:
        _straighten(stage)
    masks, seams = _first_masks(pipe, stages, inputs), seams_of(model)
    for stage in stages:
        close_traced(stage, seams)
    return Traced(pipe, masks, output)


def _output_of(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> pytree.TreeSpec:
    """The structure of what a model gives, which a trace forgets.

    Stages hand on tensors with a value per row; anything else is lost, or made of rows that do not count as well.
    """
    with undisturbed(model), torch.no_grad():
        given, structure = pytree.tree_flatten(model(*inputs))
    if not all(isinstance(each, torch.Tensor) and each.dim() > 0 and len(each) == len(inputs[0]) for each in given):
        raise InvalidSpec(
            "gives more than values of each row, which stages of a pipeline cannot hand on", field="model",
            fix="choose a plan without pipeline",
        )  # fmt: skip
    return structure


def _straighten(stage: Any) -> None:
    """Let what crosses a cut be sent as contiguous memory, whatever it was a view of: gloo takes nothing else."""
    for node in stage.graph.nodes:
        crossing = [node] if node.op == "placeholder" else pytree.tree_leaves(node.args) if node.op == "output" else []
        for each in crossing:
            value = getattr(each, "meta", {}).get("val")
            if isinstance(value, torch.Tensor):
                each.meta["val"] = value.contiguous()


def straight(outputs: Any, *, widened: bool = False) -> Any:
    """What a stage hands on, in the form that :func:`trace` has announced: also if it computes in bf16."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return (leaf.float() if widened and leaf.dtype is torch.bfloat16 else leaf).contiguous()

    return pytree.tree_map(one, outputs)


def _ties(model: torch.nn.Module) -> list[set[str]]:
    names: dict[int, set[str]] = defaultdict(set)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].add(name)
    return list(names.values())


def _check_ties(stages: Sequence[torch.nn.Module], ties: Sequence[set[str]]) -> None:
    own = [{name for name, _ in stage.named_parameters(remove_duplicate=False)} for stage in stages]
    for names in ties:
        holders = [place for place, held in enumerate(own) if held & names]
        if len(holders) > 1:
            raise InvalidSpec(
                f"the weight {sorted(names)[0]} is used by stages {holders[0]} and {holders[1]}", field="plan.cuts",
                fix="cut elsewhere, or choose a plan without pipeline",
            )  # fmt: skip


def _first_masks(pipe: Pipe, stages: Sequence[torch.nn.Module], inputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
    recorder, firsts = Recorder(), [0] * len(stages)

    def note(place: int) -> Any:
        def before(module: torch.nn.Module, arguments: Any) -> None:
            firsts[place] = len(recorder.masks)

        return before

    hooks = [stage.register_forward_pre_hook(note(place)) for place, stage in enumerate(stages)]
    try:
        with undisturbed(pipe), torch.no_grad(), recorder:
            pipe(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(firsts)
