"""Checks and stores the profiles of models that workers send, and bans plans that failed."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection

from fairlead import wire
from fairlead.control.reconcile.worker_messages import check_plain_value
from fairlead.control.records import Generation, GenerationPhase, Job, KnownModel
from fairlead.control.store import events, generations, known_models
from fairlead.errors import InvalidSpec
from fairlead.planning.profiles import Layer, ModelProfile, model_from
from fairlead.specs import JobSpec

MOST_BYTES = 256 << 10  # of a profile; a hundred layers take twenty kilobytes
MOST_LAYERS = 512
MOST_NUMBER = 1e18
LONGEST_REASON = 500
NAMES = frozenset({"group"})  # numbers that are only names: any value is valid


def model_fact(spec: JobSpec) -> dict[str, str]:
    """The key of the job's model: the same for the same code and parameters, so that it is profiled once."""
    if spec.run is None or spec.code is None:
        return {}
    said = json.dumps([spec.code, spec.run, spec.params], sort_keys=True, default=str)
    return {"model": hashlib.sha256(said.encode()).hexdigest()[:32]}


def model_key(job: Job) -> str:
    """The key of the job's model; a job without a code bundle has a key of its own."""
    return str(job.facts.get("model") or job.id)


def check_profile(said: wire.Profiled) -> ModelProfile | None:
    """The profile that a worker sends, None if it is empty. Raises ValueError for what no honest worker sends."""
    if not said.profile:
        return None
    check_plain_value(said.profile, "a profile")
    if len(msgspec.msgpack.encode(said.profile)) > MOST_BYTES:
        raise ValueError("the profile is too large")
    try:
        profile = model_from(said.profile)
    except InvalidSpec as error:
        raise ValueError(error.message) from None
    if not 1 <= len(profile.layers) <= MOST_LAYERS or not 1 <= profile.batch_size <= 2**31:
        raise ValueError("the profile has no layers, too many layers, or no batch")
    if profile.tensor_limit < 1 or not all(_sound(number) for number in _numbers(said.profile)):
        raise ValueError("the profile has impossible numbers")
    return replace(profile, layers=tuple(_split_within(layer) for layer in profile.layers))


def _split_within(layer: Layer) -> Layer:
    """Limits what can be divided of a layer to the whole of it."""
    return replace(
        layer, split_parameters=min(layer.split_parameters, layer.parameters),
        split_flops=min(layer.split_flops, layer.flops),
        split_activation_bytes=min(layer.split_activation_bytes, layer.activation_bytes),
    )  # fmt: skip


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        value = [each for name, each in value.items() if name not in NAMES]
    if isinstance(value, list | tuple):
        return [number for each in value for number in _numbers(each)]
    return [value] if isinstance(value, int | float) else []


def _sound(number: float) -> bool:
    return math.isfinite(number) and 0 <= number <= MOST_NUMBER


def refusal(wanted: str, why: str) -> str:
    """The message about a requested plan that can never run: no other plan silently replaces it."""
    return f"plan: {wanted} was asked for and cannot run: {why}; leave plan out, and the fastest that can run is chosen"


def store_profile(connection: Connection, job: Job, said: wire.Profiled, now_s: float) -> None:
    """Store the profile of a model, unless it is known already.

    An invalid profile does not end the training: it goes on without a plan.
    """
    try:
        profile, why_not = check_profile(said), said.why_not[:LONGEST_REASON]
    except ValueError as error:
        profile, why_not = None, f"its worker sent an invalid profile: {error}"
    plain = None if profile is None else msgspec.to_builtins(profile)
    why_not = "" if plain else why_not or "it could not be profiled"
    known = known_models.get(connection, job.tenant, model_key(job))
    if known is not None and known.profile is not None:
        return
    known_models.put(connection, KnownModel(job.tenant, model_key(job), plain, why_not, {}, {}, now_s))
    if plain is None and events.last(connection, job.id, "planner-blind") is None:
        text = f"{job.id} runs as whole copies, because its model could not be profiled: {why_not}"
        events.append(connection, time_s=now_s, kind="planner-blind", text=text, tenant=job.tenant, job=job.id)


def running_planner_plan(connection: Connection, job: Job) -> str | None:
    """The id of the planner's plan that the gang runs and that may be to blame; None if it runs plain replicas."""
    suspect = _suspect_plan(connection, job)
    return None if suspect is None else str(suspect[0]["id"])


def _suspect_plan(connection: Connection, job: Job) -> tuple[dict[str, Any], KnownModel] | None:
    live = generations.live_by_job(connection, {job.id}).get(job.id, [])
    plan = _planner_choice(live[-1]) if live else None
    known = known_models.get(connection, job.tenant, model_key(job)) if plan else None
    return None if plan is None or known is None else (plan, known)


def ban_plan(connection: Connection, job: Job, error: str) -> str | None:
    """Ban the planner's plan under which a gang failed, and return its id; None if it ran plain replicas.

    Whether the plan or the user's code was at fault is unknown. So the gang starts over without the plan, from its last
    snapshot, and a failure after that is the code's own.
    """
    suspect = _suspect_plan(connection, job)
    if suspect is None:
        return None
    plan, known = suspect
    banned = {**known.banned, str(plan["kind"]): error[:LONGEST_REASON]}
    known_models.update(connection, job.tenant, known.key, banned=banned)
    return str(plan["id"])


def _planner_choice(generation: Generation) -> dict[str, Any] | None:
    """The generation's plan, if the planner chose it and it differs from plain replicas."""
    plan = generation.plan
    if generation.phase is GenerationPhase.PLANNED or plan is None or plan.get("chosen") != "planner":
        return None
    return dict(plan) if plan.get("plan") is not None else None
