"""Traces a model and cuts it into pipeline stages; counts the dropout masks that each stage draws."""

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
from fairlead.training.model_probe import preserving_buffers
from fairlead.training.parallel.tensor_collectives import collectives_of, insert_collectives
from fairlead.training.randomness import Recorder


@dataclass(frozen=True, slots=True, eq=False)
class TracedStages:
    """The stages of a model, the number of masks drawn before each one, and the structure of its output."""

    pipe: Pipe
    first_masks: tuple[int, ...]
    output: pytree.TreeSpec  # structure of the last stage's tensors


def trace_stages(model: torch.nn.Module, plan: Plan, inputs: Sequence[torch.Tensor]) -> TracedStages:
    """Cut the model where the plan says; refuses one that cannot be traced, or shares weights across a cut."""
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
        _send_contiguous(stage)
    masks, seams = _first_masks(pipe, stages, inputs), collectives_of(model)
    for stage in stages:
        insert_collectives(stage, seams)
    return TracedStages(pipe, masks, output)


def _output_of(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> pytree.TreeSpec:
    """The structure of the model's output, which a trace loses.

    Stages pass on tensors with a value per row; anything else is lost, or would include padding rows.
    """
    with preserving_buffers(model), torch.no_grad():
        given, structure = pytree.tree_flatten(model(*inputs))
    if not all(isinstance(each, torch.Tensor) and each.dim() > 0 and len(each) == len(inputs[0]) for each in given):
        raise InvalidSpec(
            "returns more than one value per row, which stages of a pipeline cannot pass on", field="model",
            fix="choose a plan without pipeline",
        )  # fmt: skip
    return structure


def _send_contiguous(stage: Any) -> None:
    """Mark what crosses a cut as contiguous memory, whatever it was a view of: gloo sends nothing else."""
    for node in stage.graph.nodes:
        crossing = [node] if node.op == "placeholder" else pytree.tree_leaves(node.args) if node.op == "output" else []
        for each in crossing:
            value = getattr(each, "meta", {}).get("val")
            if isinstance(value, torch.Tensor):
                each.meta["val"] = value.contiguous()


def contiguous_outputs(outputs: Any, *, widened: bool = False) -> Any:
    """A stage's outputs in the form that :func:`trace_stages` has announced, also when it computes in bf16."""

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
        with preserving_buffers(pipe), torch.no_grad(), recorder:
            pipe(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(firsts)
