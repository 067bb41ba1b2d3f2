"""From a plan to the engine that carries it out."""

from __future__ import annotations

from fairlead.errors import InvalidSpec
from fairlead.planning.plan import Plan
from fairlead.training.engine import Engine
from fairlead.training.group import Group
from fairlead.training.replicas import Replicas
from fairlead.training.session import Session


def is_spread(plan: Plan) -> bool:
    """Whether no worker holds the whole model under this plan."""
    return plan.sharded or plan.tensor > 1 or plan.pipeline > 1


def make_engine(session: Session, group: Group, plan: Plan | None) -> Engine:
    """The engine for this plan; without one the workers are replicas."""
    if plan is None:
        return Replicas(session, group)
    _check(plan, group)
    if not is_spread(plan):
        return Replicas(session, group, plan)
    # Imported where needed: they bring a good part of torch.distributed with them, which replicas never use.
    from fairlead.training.mesh import Mesh

    if plan.pipeline > 1:
        if plan.tensor > 1 or plan.sharded:
            raise InvalidSpec(
                "a pipeline goes with replicas only: a traced stage cannot be cut further", field="plan.pipeline",
                fix="choose a plan without tensor parallelism and sharding, or without pipeline",
            )  # fmt: skip
        from fairlead.training.pipelines import Pipeline

        return Pipeline(session, Mesh(group, plan))
    from fairlead.training.spread import Spread

    return Spread(session, Mesh(group, plan))


def _check(plan: Plan, group: Group) -> None:
    if plan.workers_used != group.size:
        raise InvalidSpec(
            f"{plan.id} is for {plan.workers_used} workers, this gang has {group.size}", field="plan",
            fix="plan again for the workers that are there",
        )  # fmt: skip
