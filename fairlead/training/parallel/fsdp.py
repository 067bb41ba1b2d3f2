"""Models split in place: FSDP2 over the data axis of the mesh, DTensor tensor parallelism over the tensor axis."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from fairlead.training.batch_ranges import pass_ranges, rank_range
from fairlead.training.evaluation import Outputs, add_outputs, empty_outputs, eval_batch
from fairlead.training.model_probe import compute_loss, require_gradient
from fairlead.training.parallel.batch_norm import SyncedBatchNorms
from fairlead.training.parallel.gradients import FlatGradients
from fairlead.training.parallel.mesh import Mesh, translate_peer_errors
from fairlead.training.parallel.module_cuts import shard, split
from fairlead.training.parallel.recompute import Recompute, enable_recompute
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


class ShardedModel(SplitModel):
    """One rank of a model whose parameters are sharded, whose layers are split, or both."""

    def __init__(self, session: Session, mesh: Mesh) -> None:
        super().__init__(session, mesh)
        plan = mesh.plan
        if plan.tensor > 1:
            split(session.model, mesh)
        self._pieces, self._tensor_axis = slices_of(session.model), mesh.axis("tensor")
        random = session.findings.random
        self._dropout = SampleDropout(random, mesh.part, plan.tensor) if random.layouts else None
        if plan.recompute:
            enable_recompute(session.model, Recompute(self._dropout, lambda: session.changing, not random.exact))
        if plan.sharded:
            shard(session.model, mesh.grid["data"])
        self._shards = make_shards(session.model.named_parameters(), self._pieces, self._tensor_axis)
        self._swap.install(session.model, self._shards)
        data = mesh.axis("data")
        sums = plan.data > 1 and not plan.sharded
        self._gradients = FlatGradients([part.local for part in self._shards], data) if sums else None
        self._norms = SyncedBatchNorms(session.model, data)
        self._rounds = max(session.training.accumulate, plan.microbatches)

    # ------------------------------------------------------------ one step

    def _backward(self, step: int, index: torch.Tensor) -> float:
        """Pass by pass. Every rank runs every pass, even without samples: parameters are gathered within it."""
        shares, replica, together = self.balance.shares, self._mesh.replica, len(self._norms) > 0
        cuts = pass_ranges(len(index), self._rounds, shares, replica, together=together)
        with translate_peer_errors():
            return sum(self._compute_piece(step, index[cut.start : cut.stop], index) for cut in cuts)

    def _compute_piece(self, step: int, mine: torch.Tensor, index: torch.Tensor) -> float:
        """Gradients of this rank's part of one pass; returns its part of the mean loss."""
        session, plan = self._session, self._mesh.plan
        weight = len(mine) / len(index)
        mine = mine if len(mine) else index[:1]
        self._norms.weight = 1.0 if weight else 0.0
        batch = session.samples.take(mine, mix(session.seed, step // session.steps_per_epoch, 4))
        seed_quickly(mix(session.seed, step, self._mesh.replica, 5))
        if self._dropout is not None:
            self._dropout.begin(session.seed, step, mine)
        with self._dropout or nullcontext(), session.autocast():
            loss = require_gradient(compute_loss(session.model, session.training.loss, batch))
        factor = weight * plan.data if plan.sharded else weight  # FSDP2 averages over the data axis
        torch.autograd.backward(loss * factor)
        return float(loss.detach()) * weight

    # ------------------------------------------------------------ evaluation and state

    def outputs(self, alive: Callable[[], None]) -> Outputs:
        session, mesh = self._session, self._mesh
        found, rows = empty_outputs(), len(session.eval_samples or ())
        session.model.eval()
        with torch.no_grad(), translate_peer_errors():
            for start in range(0, rows, session.training.batch_size):
                chunk = torch.arange(start, min(start + session.training.batch_size, rows), device=session.device)
                mine = rank_range(len(chunk), self.balance.shares, mesh.replica)
                batch = eval_batch(session, chunk[mine.start : mine.stop] if len(mine) else chunk[:1])
                outputs = found["like"] = session.model(*batch[:-1])
                if len(mine) and mesh.part == 0:
                    add_outputs(session, found, outputs, batch)
                alive()
        for module in session.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # a backward pass would do it
        session.model.train()
        return found

    def state(self) -> dict[str, Any]:
        session = self._session
        with translate_peer_errors():
            return self._swap.full_state(
                whole_tensors(session.model, self._pieces, self._tensor_axis),
                optimizer_parts(session.optimizer, self._shards),
            )

    def save(self, folder: Path) -> None:
        with translate_peer_errors():
            write_shards(folder, self._session.model, self._shards, self._session.optimizer, self._swap.tensors)

    def _restore_model(self, state: dict[str, Any] | None) -> None:
        self._norms.restore()
        super()._restore_model(state)
