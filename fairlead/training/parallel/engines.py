"""Chooses the engine that carries out a plan."""

from __future__ import annotations

import torch

from fairlead.errors import InvalidSpec
from fairlead.planning.plan import Plan
from fairlead.training.group import Group
from fairlead.training.model_probe import PROBE_SAMPLES, find_kept_state, has_batch_norm
from fairlead.training.optimizers import why_not_sharded
from fairlead.training.parallel.engine import Engine
from fairlead.training.parallel.replicas import Replicas
from fairlead.training.precision import agree_dtype
from fairlead.training.session import Session


def splits_model(plan: Plan) -> bool:
    """Whether no worker holds the whole model under this plan."""
    return plan.sharded or plan.tensor > 1 or plan.pipeline > 1


def loses_state_with_worker(plan: Plan) -> bool:
    """Whether a lost worker takes a part of the state along: of the model, or of a parameter server."""
    return splits_model(plan) or plan.sync == "parameter-server"


def make_engine(session: Session, group: Group, plan: Plan | None) -> Engine:
    """The engine for this plan; without a plan workers are replicas.

    Special engines are imported where they are needed: they load parts of torch.distributed that replicas never use.
    """
    session.dtype = agree_dtype(session.training, group)
    if plan is None or not splits_model(plan):
        session.load_shards()
    if plan is None:
        return Replicas(session, group)
    wrong = _objection(plan, session, group)
    if wrong is not None:
        raise InvalidSpec(wrong, field="plan", fix="choose another plan for this training and these workers")
    if splits_model(plan):
        return _spread(session, group, plan)
    if plan.sync == "local-sgd":
        from fairlead.training.parallel.local_sgd import LocalSteps

        return LocalSteps(session, group, plan)
    if plan.sync == "parameter-server":
        from fairlead.training.servers.engine import ParameterServers

        return ParameterServers(session, group, plan)
    if plan.buckets:
        from fairlead.training.parallel.ddp import DdpEngine

        return DdpEngine(session, group, plan)
    if plan.sync == "hierarchical":
        from fairlead.training.parallel.hierarchical_sums import HierarchicalSums

        return Replicas(session, group, plan, rings=HierarchicalSums(group, plan.group))
    return Replicas(session, group, plan)


def _spread(session: Session, group: Group, plan: Plan) -> Engine:
    from fairlead.training.parallel.mesh import Mesh

    if plan.pipeline > 1:
        from fairlead.training.parallel.pipeline import Pipeline

        return Pipeline(session, Mesh(group, plan))
    from fairlead.training.parallel.fsdp import ShardedModel

    return ShardedModel(session, Mesh(group, plan))


def _objection(plan: Plan, session: Session, group: Group) -> str | None:
    """Why this plan cannot be carried out here; None if it can."""
    if plan.workers_used != group.size:
        return f"{plan.id} is for {plan.workers_used} workers, this gang has {group.size}"
    if session.training.exact and (plan.sync in ("local-sgd", "parameter-server") or plan.compression != "none"):
        return f"{plan.id} changes the maths, which this Training does not allow (exact=False would)"
    if session.training.loss is None and (splits_model(plan) or plan.buckets or plan.sync == "parameter-server"):
        return f"{plan.id}: a model with a training_step of its own runs as replicas only"
    wrong = _in_pieces(plan, session)
    if wrong:
        return f"{plan.id}: {wrong}"
    if plan.recompute and plan.schedule == "zero-bubble":
        return "zero-bubble walks a stage's graph twice, so its activations cannot be computed again"
    if plan.compression != "none" and (splits_model(plan) or plan.buckets or plan.sync != "allreduce"):
        return f"{plan.id}: only gradients that are sent in one piece are compressed"
    if splits_model(plan) and plan.sync in ("hierarchical", "local-sgd", "parameter-server"):
        return f"{plan.id}: {plan.sync} goes with whole replicas only"
    return None


def _in_pieces(plan: Plan, session: Session) -> str:
    """Why this plan cannot split the model or its batches; empty if it can."""
    training = session.training
    if plan.pipeline > 1:
        index = torch.arange(min(PROBE_SAMPLES, len(session.samples)), device=session.device)
        state = find_kept_state(session.model, session.samples.take(index, 0)[:-1])
        if state:
            return f"{state} changes in every pass, and stages cannot pass it on"
    if plan.pipeline > 1 and training.exact and has_batch_norm(session.model):
        whole = plan.microbatches == 1 and plan.data == 1 and len(session.samples) % training.batch_size == 0
        if not whole:
            return "batch norm would see parts of a batch, or padding"
    return why_not_sharded(training, session.model) if plan.sharded or plan.tensor > 1 else ""
