"""Pipeline parallelism: each rank holds some stages of the model, and micro-batches flow through them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.distributed.pipelining import schedules
from torch.utils import _pytree as pytree

from fairlead.errors import InvalidSpec
from fairlead.planning.plan import Plan
from fairlead.training.batch_ranges import rank_range
from fairlead.training.channel import log
from fairlead.training.evaluation import Outputs, outputs_of
from fairlead.training.model_probe import has_batch_norm, require_gradient
from fairlead.training.parallel.gradients import FlatGradients
from fairlead.training.parallel.mesh import Mesh, translate_peer_errors
from fairlead.training.parallel.module_cuts import shard_stage, split
from fairlead.training.parallel.pipeline_stages import TracedStages, contiguous_outputs, trace_stages
from fairlead.training.parallel.recompute import Recompute, block_names, enable_stage_recompute
from fairlead.training.parallel.sharded_parameters import (
    make_shards,
    optimizer_parts,
    whole_tensors,
)
from fairlead.training.parallel.split_model import SplitModel
from fairlead.training.parallel.tensor_layers import slices_of
from fairlead.training.randomness import SampleDropout
from fairlead.training.seeds import mix, seed_quickly
from fairlead.training.session import Session
from fairlead.training.snapshots.sharded_files import write_shards


class Pipeline(SplitModel):
    """One rank of a pipeline; several pipelines side by side are replicas of each other."""

    def __init__(self, session: Session, mesh: Mesh) -> None:
        super().__init__(session, mesh)
        plan = mesh.plan
        if has_batch_norm(session.model):
            log("batch norm: statistics of each micro-batch by itself")
        mine = rank_range(session.training.batch_size, self.balance.shares, mesh.replica)
        self._rows = max(
            1, -(-len(mine) // plan.microbatches)
        )  # of a micro-batch, fixed because send buffers keep their first size
        session.model.train()
        if plan.tensor > 1:
            split(session.model, mesh, traced=True)
        self._pieces, self._tensor_axis = slices_of(session.model), mesh.axis("tensor")
        example = torch.zeros(self._rows, dtype=torch.int64, device=session.device)
        blocks = block_names(session.model)
        traced = trace_stages(session.model, plan, session.samples.take(example, 0)[:-1])
        self._output = traced.output
        self._places = stages_of(plan, mesh.stage)
        self._last = plan.stages - 1 in self._places
        random = session.findings.random
        self._dropout = SampleDropout(random, mesh.part, plan.tensor) if random.layouts else None
        self._modules = torch.nn.ModuleList([self._prepare(traced, place, blocks) for place in self._places])
        self._schedule = self._make_schedule(traced)
        named = [pair for module in self._modules for pair in module.named_parameters()]
        self._shards = make_shards(named, self._pieces, self._tensor_axis)
        self._swap.install(self._modules, self._shards)
        data = mesh.axis("data")
        sums = plan.data > 1 and not plan.sharded
        self._gradients = FlatGradients([s.local for s in self._shards], data) if sums else None
        self._factor = plan.data if plan.sharded else 1  # FSDP2 averages over the data axis
        self._step, self._micro, self._index, self._valid, self._total = 0, 0, example, 0, 1

    def _prepare(self, traced: TracedStages, place: int, blocks: Sequence[str]) -> torch.nn.Module:
        """Wrap a stage's forward pass: sets the samples and dropout masks of each call."""
        module = traced.pipe.get_stage_module(place)
        if self._mesh.plan.recompute:
            self._forget(module, blocks)
        plain, calls, first = module.forward, {"step": -1, "count": 0}, traced.first_masks[place]
        last = self._mesh.plan.stages - 1

        def forward(*arguments: Any) -> Any:
            if self._dropout is not None:
                if calls["step"] != self._step:
                    calls.update(step=self._step, count=0)
                start = calls["count"] * self._rows
                calls["count"] += 1
                samples = self._index[start : start + self._rows]
                self._dropout.begin(self._session.seed, self._step, samples, first)
            with self._dropout or nullcontext(), self._session.autocast():
                outputs = contiguous_outputs(plain(*arguments), widened=self._session.dtype is not None)
            return outputs if place == last else pytree.tree_map(_require_grad, outputs)

        module.forward = forward
        if self._mesh.plan.sharded:
            shard_stage(module, self._mesh.grid["data"])
        return module

    def _forget(self, module: torch.nn.Module, blocks: Sequence[str]) -> None:
        findings = self._session.findings
        buffers = [buffer for name, buffer in module.named_buffers() if name in findings.changing]
        enable_stage_recompute(module, blocks, Recompute(self._dropout, lambda: buffers, not findings.random.exact))

    def _make_schedule(self, traced: TracedStages) -> Any:
        plan, mesh = self._mesh.plan, self._mesh
        group = mesh.grid.get_group("pipeline")
        stages = [traced.pipe.build_stage(place, self._session.device, group) for place in self._places]
        if self._session.device.type == "cpu":
            for (
                stage
            ) in stages:  # gloo needs no warm-up messages, and torch would send one to the rank itself (V order)
                stage._get_init_p2p_neighbors_ops = list  # type: ignore[method-assign]
        kind = schedule_of(plan)
        single = issubclass(kind, schedules.PipelineScheduleSingle)
        return kind(stages[0] if single else stages, plan.microbatches, loss_fn=self._loss, scale_grads=False)

    # ------------------------------------------------------------ one step

    def _backward(self, step: int, index: torch.Tensor) -> float:
        mine = rank_range(len(index), self.balance.shares, self._mesh.replica)
        losses = self._run_microbatches(step, index, index[mine.start : mine.stop])
        return sum(float(loss.detach()) for loss in losses) / self._factor

    def _run_microbatches(self, step: int, index: torch.Tensor, mine: torch.Tensor) -> list[torch.Tensor]:
        """Run all micro-batches forward and back. A short batch is padded with samples that do not count."""
        session, plan = self._session, self._mesh.plan
        room = self._rows * plan.microbatches
        filled = torch.cat([mine, index[:1].expand(room - len(mine))])
        self._step, self._micro, self._index, self._valid, self._total = step, 0, filled, len(mine), len(index)
        batch: tuple[torch.Tensor, ...] = ()
        if 0 in self._places or self._last:
            batch = session.samples.take(filled, mix(session.seed, step // session.steps_per_epoch, 4))
        seed_quickly(mix(session.seed, step, self._mesh.group.rank, 5))
        losses: list[torch.Tensor] = []
        inputs = batch[:-1] if 0 in self._places else ()
        target = {"target": batch[-1], "losses": losses} if self._last else {}
        with translate_peer_errors():
            self._schedule.step(*inputs, **target, return_outputs=False)
        return losses

    def _loss(self, outputs: Any, target: torch.Tensor) -> torch.Tensor:
        """This micro-batch's part of the mean loss over the whole global batch."""
        count = min(max(self._valid - self._micro * self._rows, 0), self._rows)
        self._micro += 1
        if count == 0:
            zero: torch.Tensor = sum(leaf.sum() * 0.0 for leaf in pytree.tree_leaves(outputs))
            return zero
        rows = pytree.tree_unflatten([leaf[:count] for leaf in pytree.tree_leaves(outputs)], self._output)
        function = self._session.training.loss
        assert function is not None
        loss = require_gradient(function(rows, target[:count]))
        return loss * (count / self._total * self._factor)

    # ------------------------------------------------------------ evaluation and state

    def outputs(self, alive: Callable[[], None]) -> Outputs:
        """Evaluate with the plain model, rebuilt for this: a traced one is fixed to training mode."""
        session, group = self._session, self._mesh.group
        weights = self._gather_state()[0]
        session.model = self._swap.plain_model()
        try:
            session.model.load_state_dict(weights)
            mine = rank_range(len(session.eval_samples or ()), (1.0,) * group.size, group.rank)
            return outputs_of(session, mine, alive)
        finally:
            session.model = self._modules

    def _gather_state(self) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, Any]]]:
        """All tensors and the optimizer's state by name, on every rank: each stage broadcasts its own."""
        session, plan, group = self._session, self._mesh.plan, self._mesh.group
        own: dict[str, torch.Tensor] = {}
        with translate_peer_errors():
            for module in self._modules:
                own |= whole_tensors(module, self._pieces, self._tensor_axis)
            states = optimizer_parts(session.optimizer, self._shards)
        buffer = io.BytesIO()
        torch.save((own, states), buffer)
        model: dict[str, torch.Tensor] = {}
        parts: dict[str, dict[str, Any]] = {}
        for stage in range(plan.pipeline):
            source = stage * plan.data * plan.tensor
            data = group.broadcast(buffer.getvalue() if group.rank == source else None, source)
            tensors, stage_states = torch.load(io.BytesIO(data), map_location=session.device, weights_only=True)
            model.update({name: tensor for name, tensor in tensors.items() if name in self._swap.tensors})
            parts.update(stage_states)
        return model, parts

    def state(self) -> dict[str, Any]:
        return self._swap.full_state(*self._gather_state())

    def save(self, folder: Path) -> None:
        with translate_peer_errors():
            write_shards(folder, self._modules, self._shards, self._session.optimizer, self._swap.tensors)


def _require_grad(leaf: Any) -> Any:
    """A stage's output that requires a gradient, so that one can come back even if nothing before is trained."""
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and torch.is_grad_enabled():
        return leaf if leaf.requires_grad else leaf.detach().requires_grad_()
    return leaf


def stages_of(plan: Plan, worker: int) -> Sequence[int]:
    """The stages that a worker of the pipeline holds, in the order that its schedule wants."""
    if plan.schedule == "zero-bubble" and plan.chunks == 2:
        return (worker, 2 * plan.pipeline - 1 - worker)
    return tuple(worker + chunk * plan.pipeline for chunk in range(plan.chunks))


def schedule_of(plan: Plan) -> type[Any]:
    """torch's schedule for the plan."""
    found = {
        ("gpipe", False): schedules.ScheduleGPipe, ("gpipe", True): schedules.ScheduleLoopedBFS,
        ("1f1b", False): schedules.Schedule1F1B, ("interleaved", True): schedules.ScheduleInterleaved1F1B,
        ("zero-bubble", False): schedules.ScheduleInterleavedZeroBubble,
        ("zero-bubble", True): schedules.ScheduleZBVZeroBubble,
    }.get((plan.schedule or "", plan.chunks > 1))  # fmt: skip
    if found is None or (plan.schedule == "zero-bubble" and plan.chunks > 2):
        raise InvalidSpec(
            f"{plan.schedule} does not support {plan.chunks} stages per worker", field="plan.schedule",
            fix="interleaved needs two or more, 1f1b one, zero-bubble one or two",
        )  # fmt: skip
    return found
