"""Which plan a gang runs: the fastest one, unless it is hardly faster than plain replicas, which always work."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from fairlead.planning.cost import Estimate, estimate, kind
from fairlead.planning.explain import explain, row
from fairlead.planning.ground import Ground
from fairlead.planning.plan import SINGLE, Plan, ddp
from fairlead.planning.profiles import Hardware, ModelProfile
from fairlead.planning.search import candidates, search

WANTED = ("auto", "single", "dp", "ddp", "fsdp", "tp", "pp")
"""What may be asked for: the planner's choice, or the best plan of one family."""

MARGIN = 0.1
"""A plan has to be predicted so much faster than replicas to be run instead of them."""

UNMEASURED = 0.25
"""... where devices are only known by their type: such predictions are further off."""

SHOWN = 6
"""Other candidates that are kept with a choice, so that one can see what it was weighed against."""

EVERYTHING = 400
"""Candidates that are ranked when one family is asked for: none of it may be crowded out by others."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan to run, with what is expected of it and why it was taken."""

    estimate: Estimate
    reason: str
    others: tuple[Estimate, ...] = ()  # that were weighed against it, best first

    @property
    def plan(self) -> Plan:
        return self.estimate.plan

    def rows(self) -> list[dict[str, Any]]:
        """The candidates with figures and reasons, the chosen one first, as ``fairlead plan`` shows them."""
        every = [self.estimate, *self.others]
        return [row(one, why) for one, why in zip(every, [self.reason, *explain(every)[1:]], strict=True)]


def replicas(workers: int) -> Plan:
    """Whole copies on all workers, gradients summed in one piece: what runs where nothing better is known."""
    return Plan(data=workers, sync="allreduce") if workers > 1 else SINGLE


def family(plan: Plan) -> str:
    """The word of ``WANTED`` that means such a plan."""
    if plan.workers_used == 1:
        return "single"
    if plan.pipeline > 1:
        return "pp"
    if plan.tensor > 1:
        return "tp"
    return "fsdp" if plan.sharded else "ddp" if plan.buckets else "dp"


def blind(wanted: str, workers: int) -> Plan:
    """The plan for a model of which nothing is known: those that were asked for and need no cuts, else replicas."""
    if workers == 1:
        return SINGLE
    plain = replicas(workers)
    known = {"single": Plan(members=(0,)), "ddp": ddp(workers), "fsdp": replace(plain, sharded=True)}
    return known.get(wanted, plain)


def choose(
    model: ModelProfile, hardware: Hardware, *, wanted: str = "auto", banned: Collection[str] = (),
    margin: float = MARGIN,
) -> Choice:  # fmt: skip
    """The plan for these workers; ``banned`` are kinds of plans that this model failed with."""
    usual = estimate(model, Ground(hardware), replicas(len(hardware.seats)))
    if wanted not in ("auto", "dp"):
        return _asked_for(model, hardware, usual, wanted)
    every = candidates(model, hardware, on_paper=False)
    able = [one for one in every if one.fits and kind(one.plan) not in banned]
    if wanted == "dp" or not able:
        asked = "replicas were asked for" if wanted == "dp" else "the model fits in no way, so it is tried as replicas"
        return Choice(usual, asked)
    best = able[0]
    if best.plan == usual.plan:
        return Choice(best, _with_limits(explain(able)[0], model), _weighed(every, best))
    if usual.fits and usual.worth_s < best.worth_s * (1 + margin):
        faster = usual.worth_s / best.worth_s - 1
        said = f"replicas: {best.plan.id} is predicted to be only {faster:.0%} faster, which may be an error"
        return Choice(usual, _with_limits(said, model), _weighed(every, usual))
    return Choice(best, _with_limits(explain(able)[0], model), _weighed(every, best))


def _weighed(every: Sequence[Estimate], chosen: Estimate) -> tuple[Estimate, ...]:
    """The others worth showing: the best few, and what everybody would do."""
    others = [one for one in every if one.plan.id != chosen.plan.id]
    few = others[:SHOWN]
    return (*few, *(one for one in others[SHOWN:] if one.plan.id in ("ddp", "single")))


def _asked_for(model: ModelProfile, hardware: Hardware, usual: Estimate, wanted: str) -> Choice:
    if wanted == "ddp":
        return Choice(estimate(model, Ground(hardware), ddp(len(hardware.seats))), "ddp was asked for")
    found = [one for one in search(model, hardware, EVERYTHING, on_paper=False) if family(one.plan) == wanted]
    if found:
        return Choice(found[0], f"{wanted} was asked for")
    why = model.limits[0] if model.limits else f"{len(hardware.seats)} of these workers have no plan of this kind"
    return Choice(usual, f"{wanted} was asked for, but replicas run: {why}")


def _with_limits(reason: str, model: ModelProfile) -> str:
    return f"{reason} ({model.limits[0]})" if model.limits and len(model.layers) == 1 else reason
