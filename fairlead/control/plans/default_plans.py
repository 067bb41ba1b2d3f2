"""Makes the plan of a gang for which the planner has no answer: whole copies, or what the job's author requested."""

from __future__ import annotations

from fairlead.control.plans.model_profiles import refusal
from fairlead.control.plans.plan_questions import ChosenPlan
from fairlead.control.plans.replanning import unpredicted_plan
from fairlead.control.records import Job, KnownModel
from fairlead.planning.plan_choice import MODEL_PARALLEL, plan_without_profile
from fairlead.planning.profiles import Hardware

UNKNOWN = "whole copies: nothing is known of this model yet"

_STRANGE = "the planner does not know these devices, or there are too many"


def requested_plan(job: Job) -> str:
    """The family of plans that the job's author requested, or auto."""
    return str(job.facts.get("plan", "auto"))


def needs_profile(job: Job, known: KnownModel | None, hardware: Hardware | None, size: int) -> bool:
    """True if a worker has to profile the model first, and the profile can change the plan."""
    if requested_plan(job) in MODEL_PARALLEL:
        return size > 1 and (known is None or known.profile is None)
    return requested_plan(job) == "auto" and job.max_workers > 1 and known is None and hardware is not None


def default_plan(
    job: Job, size: int, known: KnownModel | None, hardware: Hardware | None, why: str | None = None
) -> ChosenPlan:  # fmt: skip
    """The plan for a gang of this size; ``why`` says why the planner has no answer, if it was asked."""
    name = requested_plan(job)
    plan = plan_without_profile(name, size)
    if name in MODEL_PARALLEL and size > 1 and known is not None:
        return ChosenPlan(None, refused=refusal(name, why or (_STRANGE if known.profile else known.why_not)))
    reason = f"whole copies: {why}" if why else _reason(known, hardware, name)
    return ChosenPlan(unpredicted_plan(plan, reason, "default" if name == "auto" else "asked"), plan.members)


def _reason(known: KnownModel | None, hardware: Hardware | None, name: str) -> str:
    if known is None:
        return UNKNOWN if name == "auto" else f"{name} was asked for; nothing is known of this model yet"
    if known.profile is None:
        return f"whole copies: the model could not be profiled: {known.why_not}"
    if hardware is None:
        return f"whole copies: {_STRANGE}"
    return "whole copies: its steps take far longer than the planner's model of them can explain"
