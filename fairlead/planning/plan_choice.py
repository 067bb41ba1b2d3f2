"""Chooses the plan of a gang: the fastest, unless plain replicas, which always work, are nearly as fast."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import Any

from msgspec.structs import replace

from fairlead.planning.cost import Estimate, estimate, plan_kind
from fairlead.planning.memory import USABLE
from fairlead.planning.plan import SINGLE, Plan, ddp_plan
from fairlead.planning.plan_candidates import Shape
from fairlead.planning.plan_reasons import explain_plans, plan_row
from fairlead.planning.profiles import Hardware, ModelProfile
from fairlead.planning.search import candidates, search
from fairlead.planning.search_budget import Budget
from fairlead.planning.topology import Topology
from fairlead.units import shown_size

PLAN_FAMILIES = ("auto", "single", "dp", "ddp", "fsdp", "tp", "pp")
"""Values of a plan request: the planner's choice, or the best plan of one family."""

MODEL_PARALLEL = ("tp", "pp")
"""Families that divide the model: they need its profile."""

MARGIN = 0.1
"""A plan must be predicted faster than replicas by this fraction to replace them."""

UNMEASURED = 0.25
"""The margin for devices known only by type, whose predictions are less accurate."""

ALTERNATIVES_SHOWN = 6
"""Alternatives that are kept with a choice for display."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen plan with its estimate, reason and alternatives."""

    estimate: Estimate
    reason: str
    others: tuple[Estimate, ...] = ()  # alternatives, best first
    refused: str = ""  # why the requested plan can never run here; then no other plan runs either

    @property
    def plan(self) -> Plan:
        return self.estimate.plan

    def rows(self) -> list[dict[str, Any]]:
        """The candidates with figures and reasons, the chosen one first, as ``fairlead plan`` lists them."""
        every = [self.estimate, *self.others]
        return [plan_row(one, why) for one, why in zip(every, [self.reason, *explain_plans(every)[1:]], strict=True)]


def replica_plan(workers: int) -> Plan:
    """Whole copies on all workers, with gradients summed in one piece: the default plan."""
    return Plan(data=workers, sync="allreduce") if workers > 1 else SINGLE


def plan_family(plan: Plan | Shape) -> str:
    """The family of a plan, one of ``PLAN_FAMILIES``."""
    if plan.workers_used == 1:
        return "single"
    if plan.pipeline > 1:
        return "pp"
    if plan.tensor > 1:
        return "tp"
    return "fsdp" if plan.sharded else "ddp" if plan.buckets else "dp"


def why_unsupported(model: ModelProfile, wanted: str) -> str:
    """Why no gang can ever run this model in this family; empty if one can."""
    if model.copies_only and wanted in ("fsdp", *MODEL_PARALLEL):
        why = "only whole copies of it can run"
    elif wanted == "tp" and model.tensor_limit < 2:
        why = "none of its layers can be shared by workers"
    elif wanted == "pp" and len(model.layers) < 2:
        why = "it is one piece, which cannot be cut into stages"
    else:
        return ""
    return f"{why} ({model.limits[0]})" if model.limits else why


def plan_without_profile(wanted: str, workers: int) -> Plan:
    """The plan for a model without a profile: the requested family if it needs none, else replicas."""
    if workers == 1:
        return SINGLE
    plain = replica_plan(workers)
    known = {"single": Plan(members=(0,)), "ddp": ddp_plan(workers), "fsdp": replace(plain, sharded=True)}
    return known.get(wanted, plain)


def choose_plan(
    model: ModelProfile, hardware: Hardware, *, wanted: str = "auto", banned: Collection[str] = (),
    margin: float = MARGIN, budget: Budget | None = None,
) -> Choice:  # fmt: skip
    """The plan for these workers; ``banned`` are kinds of plans with which this model has failed.

    If nothing fits into memory, replicas are tried nevertheless, because memory is only predicted; the reason gives
    the predicted and the available memory. If the ``budget`` is used up, the choice is the best plan so far, and the
    reason says so.
    """
    budget = Budget() if budget is None else budget
    found = (_choose_fastest if wanted == "auto" else _choose_requested)(
        model, hardware, wanted, banned, margin, budget
    )
    return replaced(found, reason=budget.annotated(found.reason))


def _choose_fastest(
    model: ModelProfile, hardware: Hardware, wanted: str, banned: Collection[str], margin: float, budget: Budget
) -> Choice:
    usual = estimate(model, Topology(hardware), replica_plan(len(hardware.seats)))
    every = candidates(model, hardware, on_paper=False, budget=budget)
    able = [one for one in every if one.fits and plan_kind(one.plan) not in banned]
    if not able:
        return Choice(usual, _why_replicas(model, hardware, usual, any(one.fits for one in every)))
    best = able[0]
    if best.plan == usual.plan:
        return Choice(best, _with_limits(explain_plans(able)[0], model), _alternatives(every, best))
    if usual.fits and usual.adjusted_step_s < best.adjusted_step_s * (1 + margin):
        faster = usual.adjusted_step_s / best.adjusted_step_s - 1
        reason = f"replicas: {best.plan.id} is predicted to be only {faster:.0%} faster, which may be an error"
        return Choice(usual, _with_limits(reason, model), _alternatives(every, usual))
    return Choice(best, _with_limits(explain_plans(able)[0], model), _alternatives(every, best))


def memory_in_words(one: Estimate, hardware: Hardware) -> str:
    """The memory that a plan needs on a worker, and the memory that the worker may use, in words."""
    workers = one.plan.members or range(one.plan.workers_used)
    least = min(hardware.device(worker).memory_bytes for worker in workers)
    return f"{shown_size(one.memory_bytes)} of memory on a worker, of {shown_size(USABLE * least)} that it may use"


def _why_replicas(model: ModelProfile, hardware: Hardware, usual: Estimate, fitting: bool) -> str:
    if usual.fits:
        return "replicas: every other plan that fits has failed with this model"
    why = "what would fit has failed with this model" if fitting else "the model fits in no way"
    reason = f"{why}, so it is tried as replicas, which are predicted to need {memory_in_words(usual, hardware)}"
    return _with_limits(f"{reason}: give it more memory or more workers, or a smaller batch", model)


def _alternatives(every: Sequence[Estimate], chosen: Estimate) -> tuple[Estimate, ...]:
    """The alternatives to show: the best few, and the baselines ddp and single."""
    others = [one for one in every if one.plan.id != chosen.plan.id]
    few = others[:ALTERNATIVES_SHOWN]
    return (*few, *(one for one in others[ALTERNATIVES_SHOWN:] if one.plan.id in ("ddp", "single")))


def _choose_requested(
    model: ModelProfile, hardware: Hardware, wanted: str, banned: Collection[str], margin: float, budget: Budget
) -> Choice:
    """The best plan of the requested family, even if it is not predicted to fit; one worker runs alone.

    If several workers have no plan of this family, the choice is ``refused`` with the reason and must not run.
    """
    topology, workers = Topology(hardware), len(hardware.seats)
    usual = estimate(model, topology, replica_plan(workers))
    if wanted in ("dp", "ddp"):
        found = [usual if wanted == "dp" else estimate(model, topology, ddp_plan(workers))]
    else:
        found = search(
            model, hardware, 1, on_paper=False, only=lambda shape: plan_family(shape) == wanted, budget=budget
        )
    named = "replicas were" if wanted == "dp" else f"{wanted} was"
    if found and found[0].fits:
        return Choice(found[0], f"{named} asked for")
    if workers == 1:
        alone = _choose_fastest(model, hardware, "auto", banned, margin, budget)
        return replaced(alone, reason=f"{named} asked for, and one worker runs alone: {alone.reason}")
    why = why_unsupported(model, wanted)
    if wanted not in MODEL_PARALLEL and not why:
        tried = found[0] if found else estimate(model, topology, plan_without_profile(wanted, workers))
        return Choice(tried, f"{named} asked for; it is predicted to need {memory_in_words(tried, hardware)}")
    why = why or f"no plan of this kind suits its batch, its maths and the memory of {workers} of these workers"
    return Choice(usual, f"{named} asked for, and cannot run: {why}", refused=why)


def _with_limits(reason: str, model: ModelProfile) -> str:
    return f"{reason} ({model.limits[0]})" if model.limits and len(model.layers) == 1 else reason
