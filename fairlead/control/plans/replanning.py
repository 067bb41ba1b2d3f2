"""Reviews a running gang: what its steps teach about its model, and whether another plan would pay off. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.control.records import OFFERED, Generation, GenerationPhase, Job
from fairlead.planning.cost import Estimate, estimate, fit_correction, plan_kind
from fairlead.planning.model_corrections import corrected, is_predictable, uncorrected, with_ratio
from fairlead.planning.plan import Plan, plan_from
from fairlead.planning.plan_choice import MARGIN, UNMEASURED, Choice, choose_plan, plan_family, replica_plan
from fairlead.planning.profiles import ALL_KINDS, Hardware, ModelProfile
from fairlead.planning.topology import Topology

ENOUGH_S = 5.0  # after this long a gang has settled and its speed counts
ENOUGH_STEPS = 5
LONG_S = 60.0  # a prediction that is wrong for this long casts doubt on the hardware profile
BETTER = 0.15  # how much faster a plan must be to replace one that works
PAYBACK = 2.0  # ... and how many times the cost of the change it must save
CHANGE_S = 2.0  # the least cost of a change


@dataclass(frozen=True, slots=True)
class LearnedModel:
    """A profiled model, and what has been learned since."""

    profile: ModelProfile
    seen: Mapping[str, float]
    banned: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Review:
    """What to store, and what to do."""

    plan: Mapping[str, Any] | None = None  # of the generation, with what was measured
    seen: Mapping[str, float] | None = None  # of the model
    step_s: float | None = None  # measured
    better: Choice | None = None
    disagrees: float | None = None  # measured over predicted, when it has been far off for long


def describe_plan(one: Estimate, reason: str, chosen: str) -> dict[str, Any]:
    """A plan with its prediction, as it is stored and shown; ``plan`` is None where workers need no instructions."""
    return {
        **unpredicted_plan(one.plan, reason, chosen), "step_s": one.step_s, "samples_per_s": one.samples_per_s,
        "memory_bytes": int(one.memory_bytes), "bottleneck": one.bottleneck if one.fits else "memory",
    }  # fmt: skip


def describe_choice(found: Choice, reason: str, chosen: str) -> dict[str, Any]:
    """A plan with the candidates it was compared to."""
    return {**describe_plan(found.estimate, reason, chosen), "candidates": found.rows()}


def unpredicted_plan(plan: Plan, reason: str, chosen: str) -> dict[str, Any]:
    """A plan without a prediction."""
    usual = plan == replica_plan(plan.workers_used) or (plan_family(plan) == "dp" and _only_shares(plan))
    written = None if usual or plan.workers_used == 1 else {**plan.to_plain(), "members": []}
    return {
        "id": plan.id, "kind": plan_kind(plan), "plan": written, "workers_used": plan.workers_used, "reason": reason,
        "chosen": chosen,
    }  # fmt: skip


def _only_shares(plan: Plan) -> bool:
    """True for replicas that differ only in their shares, which follow the measured speeds anyway."""
    return plan == Plan(data=plan.data, sync="allreduce", shares=plan.shares, members=plan.members)


def running_plan(generation: Generation) -> Plan:
    """The plan that the generation's workers run."""
    known = generation.plan or {}
    written = known.get("plan")
    return plan_from(written) if written else replica_plan(int(known.get("workers_used", len(generation.members))))


def review(
    job: Job, generation: Generation, known: LearnedModel, hardware: Hardware, now_s: float, *, sure: bool,
    restart_s: float,
    compute_s: float | None = None,
) -> Review:  # fmt: skip
    """What follows from how this generation has run so far; ``hardware`` covers all its members, by rank.

    ``compute_s`` is how long a replica with an equal share of the batch computes before each exchange, if measured.
    """
    measured_s = measured_step_s(job, generation, now_s)
    model = corrected(known.profile, hardware, known.seen)
    now = _estimate_now(generation, model, hardware)
    plan = dict(generation.plan or {})
    if "step_s" not in plan:  # nobody knew the model when it began
        reason = plan.get("reason") or "whole copies, as nothing was known of the model when it began"
        plan = describe_plan(now, str(reason), str(plan.get("chosen", "default")))
    if measured_s is None:
        return Review(plan=plan if generation.plan != plan else None)
    age_s = now_s - (now_s if generation.running_s is None else generation.running_s)
    if age_s < 2 * float(plan.get("measured_after_s", 0.0)):
        return Review()
    ratio = measured_s / float(plan["step_s"])
    seen = _learned(known, now.plan, hardware, measured_s, compute_s)
    plan = {name: value for name, value in plan.items() if name != OFFERED}  # as more is known now
    plan |= {"measured_step_s": measured_s, "measured_after_s": age_s}
    wiser = LearnedModel(known.profile, seen, known.banned)
    better = _better_plan(job, wiser, now.plan, hardware, measured_s, restart_s, sure=sure)
    off = ratio if age_s >= LONG_S and not plan.get("doubted") else None
    return Review(plan, seen, measured_s, better, off)


def _learned(
    known: LearnedModel, plan: Plan, hardware: Hardware, step_s: float, compute_s: float | None
) -> dict[str, float]:
    """The corrections seen before and now: how slowly these workers compute, and how slow plans of this kind are on
    them."""
    ground = Topology(hardware)
    seen = with_ratio(known.seen, plan_kind(plan), fit_correction(known.profile, ground, plan, step_s))
    expected_s = estimate(uncorrected(known.profile), ground, plan, 1.0).parts.get("compute", 0.0)
    if compute_s is None or expected_s <= 0 or plan_kind(plan) not in ("dp", "ddp"):
        return seen
    return with_ratio(seen, ALL_KINDS, compute_s / expected_s)


def measured_step_s(job: Job, generation: Generation, now_s: float) -> float | None:
    """Seconds per step so far, with snapshots and evaluations; None while it is too early to say."""
    running = generation.phase is GenerationPhase.RUNNING and generation.broken_s is None
    if not running or generation.first_step is None or generation.running_s is None:
        return None
    age_s, steps = now_s - generation.running_s, job.step - generation.first_step + 1
    return age_s / steps if age_s >= ENOUGH_S and steps >= ENOUGH_STEPS else None


def _estimate_now(generation: Generation, model: ModelProfile, hardware: Hardware) -> Estimate:
    return estimate(model, Topology(hardware), running_plan(generation))


def _better_plan(
    job: Job, known: LearnedModel, plan: Plan, hardware: Hardware, step_s: float, restart_s: float, *, sure: bool
) -> Choice | None:
    """Another plan for the same workers, if it is clearly faster and enough work is left."""
    wanted = str(job.facts.get("plan", "auto"))
    if wanted == "auto" and not is_predictable(known.seen):
        return None
    model = corrected(known.profile, hardware, known.seen)
    found = choose_plan(model, hardware, wanted=wanted, banned=known.banned, margin=MARGIN if sure else UNMEASURED)
    here = estimate(model, Topology(hardware), plan)
    if found.refused or not found.estimate.fits:
        return None  # it works as it is; a plan that might break it is no improvement
    if found.plan == plan or unpredicted_plan(found.plan, "", "")["id"] == plan.id or not job.total_steps:
        return None
    gain = here.adjusted_step_s / found.estimate.adjusted_step_s
    saved_s = (job.total_steps - job.step) * step_s * (1 - 1 / gain)
    asked_for = wanted != "auto" and plan_family(plan) != wanted and plan_family(found.plan) == wanted
    worth_it = gain >= 1 + BETTER and saved_s > PAYBACK * max(restart_s, CHANGE_S)
    return found if asked_for or worth_it else None
