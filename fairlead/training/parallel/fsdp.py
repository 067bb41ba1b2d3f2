"""A model cut up in place: FSDP2 over the data side of the grid, DTensor tensor parallelism over the tensor side."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from fairlead.training.batch_ranges import part, pieces
from fairlead.training.evaluation import Outputs, add_outputs, empty_outputs, eval_batch
from fairlead.training.flag_exchange import say
from fairlead.training.model_probe import call, check_gradient
from fairlead.training.parallel.batch_norm import SyncedBatchNorms
from fairlead.training.parallel.gradients import FlatGradients
from fairlead.training.parallel.mesh import Mesh, lost_peers
from fairlead.training.parallel.model_swap import ModelSwap
from fairlead.training.parallel.module_cuts import shard, split
from fairlead.training.parallel.recompute import Recompute, forget
from fairlead.training.parallel.sharded_parameters import Shard, clip, optimizer_parts, shards, whole_tensors
from fairlead.training.parallel.tensor_layers import slices_of
from fairlead.training.randomness import SampleDropout
from fairlead.training.seeds import mix, seed_quickly
from fairlead.training.session import Session
from fairlead.training.snapshots.sharded_files import write_parts
from fairlead.training.step_flags import GroupFlags, RankFlags
from fairlead.training.step_watch import StragglerWatch, own_s


class ShardedModel:
    """One rank of a model that no rank holds whole."""

    spread = True

    def __init__(self, session: Session, mesh: Mesh) -> None:
        self._session, self._mesh = session, mesh
        self._loan = ModelSwap(session)
        plan = mesh.plan
        if plan.tensor > 1:
            split(session.model, mesh)
        self._pieces, self._side = slices_of(session.model), mesh.side("tensor")
        random = session.findings.random
        self._dropout = SampleDropout(random, mesh.part, plan.tensor) if random.layouts else None
        if plan.recompute:
            forget(session.model, Recompute(self._dropout, lambda: session.changing, not random.exact))
        if plan.sharded:
            shard(session.model, mesh.grid["data"])
        self._shards: list[Shard] = shards(session.model.named_parameters(), self._pieces, self._side)
        self._loan.use(session.model, self._shards)
        data = mesh.side("data")
        sums = plan.data > 1 and not plan.sharded
        self._gradients = FlatGradients([part.local for part in self._shards], data) if sums else None
        self._norms = SyncedBatchNorms(session.model, data)
        self._rounds = max(session.training.accumulate, plan.microbatches)
        self.balance = mesh.balance(session.training.batch_size)
        self._watch = StragglerWatch(self.balance, mesh.group.rank)

    # ------------------------------------------------------------ one step

    def step(self, step: int, index: torch.Tensor, word: RankFlags) -> GroupFlags:
        session, mesh = self._session, self._mesh
        begun_s = own_s()
        for piece in self._shards:
            piece.clear_gradient()
        with lost_peers():
            loss = self._backward(step, index)
        for piece in self._shards:
            piece.take_gradient()
        computed_s = own_s() - begun_s
        if self._gradients is not None:
            self._gradients.exchange(RankFlags())
        heard = say(mesh.group, replace(word, loss=loss if mesh.part == 0 else 0.0, compute_s=computed_s))
        heard.check(step)
        if session.training.clip_grad_norm is not None:
            clip(self._shards, mesh, session.training.clip_grad_norm)
        session.optimizer.step()
        if len(index) == session.training.batch_size:
            self._watch.note(heard.compute_s)
        return heard

    def _backward(self, step: int, index: torch.Tensor) -> float:
        """Piece by piece; everybody runs every pass, also who has no samples: parameters are gathered within it."""
        shares, replica, together = self.balance.shares, self._mesh.replica, len(self._norms) > 0
        cuts = pieces(len(index), self._rounds, shares, replica, together=together)
        return sum(self._piece(step, index[cut.start : cut.stop], index) for cut in cuts)

    def _piece(self, step: int, mine: torch.Tensor, index: torch.Tensor) -> float:
        session, plan = self._session, self._mesh.plan
        weight = len(mine) / len(index)
        mine = mine if len(mine) else index[:1]
        self._norms.weight = 1.0 if weight else 0.0
        batch = session.samples.take(mine, mix(session.seed, step // session.steps_per_epoch, 4))
        seed_quickly(mix(session.seed, step, self._mesh.replica, 5))
        if self._dropout is not None:
            self._dropout.begin(session.seed, step, mine)
        with self._dropout or nullcontext(), session.computing():
            loss = check_gradient(call(session.model, session.training.loss, batch))
        factor = weight * plan.data if plan.sharded else weight  # FSDP2 averages over the data side
        torch.autograd.backward(loss * factor)
        return float(loss.detach()) * weight

    # ------------------------------------------------------------ evaluation and state

    def outputs(self, alive: Callable[[], None]) -> Outputs:
        session, mesh = self._session, self._mesh
        found, rows = empty_outputs(), len(session.eval_samples or ())
        session.model.eval()
        with torch.no_grad(), lost_peers():
            for start in range(0, rows, session.training.batch_size):
                chunk = torch.arange(start, min(start + session.training.batch_size, rows), device=session.device)
                mine = part(len(chunk), self.balance.shares, mesh.replica)
                batch = eval_batch(session, chunk[mine.start : mine.stop] if len(mine) else chunk[:1])
                outputs = found["like"] = session.model(*batch[:-1])
                if len(mine) and mesh.part == 0:
                    add_outputs(session, found, outputs, batch)
                alive()
        for module in session.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # without a backward pass nothing else does
        session.model.train()
        return found

    def state(self) -> dict[str, Any]:
        session = self._session
        with lost_peers():
            return self._loan.whole(
                whole_tensors(session.model, self._pieces, self._side),
                optimizer_parts(session.optimizer, self._shards),
            )

    def save(self, folder: Path) -> None:
        with lost_peers():
            write_parts(folder, self._session.model, self._shards, self._session.optimizer, self._loan.tensors)

    def place(self) -> dict[str, Any]:
        return self._loan.place()

    def end(self) -> None:
        self._give_back(self.state())

    def abandon(self) -> None:
        self._give_back(None)

    def _give_back(self, state: dict[str, Any] | None) -> None:
        self._norms.restore()
        self._loan.give_back(state)
        self._mesh.close()
