"""Builds the views of jobs, nodes, tenants and events that the API returns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from fairlead import wire
from fairlead.cluster import Node, NodeState
from fairlead.control.accounting.budgets import Spending
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.records import ENDED, Generation, Job, JobPhase, LoggedEvent, Tenant, Token
from fairlead.control.tenant_tree import TenantShare
from fairlead.scheduling.mentioned_jobs import redact_facts, redact_text
from fairlead.scheduling.phrases import utc_time
from fairlead.scheduling.state import Hold, Reason
from fairlead.specs import Policy
from fairlead.views.jobs import (
    EventView,
    GenerationView,
    JobView,
    MemberView,
    NodeView,
    PersonView,
    PlanView,
    ReasonView,
    SlotView,
    SpendingView,
    TenantView,
    TokenView,
)

FURTHEST_S = 10 * 366 * 86_400.0


def sla_met(job: Job, now_s: float) -> bool | None:
    """Whether the promised time was kept; None while it is open or without a promise."""
    if job.phase is JobPhase.CANCELLED:
        return None
    if job.finish_by_s is not None:
        if job.phase is JobPhase.SUCCEEDED and job.finished_s is not None:
            return job.finished_s <= job.finish_by_s
        return False if now_s > job.finish_by_s or job.phase is JobPhase.FAILED else None
    if job.start_by_s is not None:
        if job.started_s is not None:
            return job.started_s <= job.start_by_s
        return False if now_s > job.start_by_s else None
    return None


def reason_view(reason: Reason, tenant: str | None) -> ReasonView:
    """A reason as this tenant may read it; None: unredacted."""
    return ReasonView(code=reason.code, text=redact_text(reason.text, tenant), facts=redact_facts(reason.facts, tenant))


def reason_of(job: Job, newest: Generation | None, hold: Hold | None, tenant: str | None) -> ReasonView | None:
    """Why a job is in its present state: waiting, running with what it was given, or ended."""
    if job.phase is JobPhase.QUEUED:
        if hold is not None:
            return reason_view(hold.reason, tenant)
        if backs_off(job):
            return _back_off_view(job)
        return ReasonView(code="undecided", text="the next round of the scheduler decides about it")
    if job.phase is JobPhase.STOPPING:
        return ReasonView(code=job.outcome or "stopping", text=f"its workers are being ended ({job.outcome})")
    if job.phase in ENDED:
        return ReasonView(code=str(job.phase), text=job.message or f"it {_PAST[job.phase]}")
    if newest is not None:
        return ReasonView(code=newest.reason_code, text=redact_text(newest.reason, tenant))
    return None


def backs_off(job: Job) -> bool:
    """True if it waits in the queue because of how its workers died."""
    return job.phase is JobPhase.QUEUED and job.back_off_until_s is not None and job.back_off_until_s > job.since_s


def _back_off_view(job: Job) -> ReasonView:
    until_s = job.back_off_until_s or 0.0
    text = f"backs off until {utc_time(until_s)}, when it starts over: {job.back_off_why}"
    return ReasonView(code="back-off", text=text, facts={"until_s": until_s})


_PAST = {
    JobPhase.SUCCEEDED: "finished",
    JobPhase.FAILED: "failed",
    JobPhase.CANCELLED: "was cancelled",
}


def job_fields(
    job: Job, labels: Mapping[str, str], live: Sequence[Generation], hold: Hold | None, now_s: float,
    tenant: str | None,
) -> dict[str, Any]:  # fmt: skip
    """The fields of a JobView as this tenant may read it; None: unredacted."""
    newest = live[-1] if live else None
    seated = next((g for g in reversed(live) if g.running_s is not None), newest)
    members = sorted(seated.members, key=lambda m: m.rank) if seated else []
    sla = {"finish_by_s": job.finish_by_s, "start_by_s": job.start_by_s}
    return {
        "id": job.id, "name": job.name, "tenant": job.tenant, "state": str(job.phase), "labels": dict(labels),
        "priority": job.priority, "workers": len(members), "min_workers": job.min_workers,
        "max_workers": job.max_workers, "nodes": [member.node for member in members], "generation": job.generation,
        "submitted_s": job.submitted_s, "submitted_by": job.submitted_by, "started_s": job.started_s,
        "finished_s": job.finished_s, "expected_start_s": _expected_s(job, hold, now_s),
        "sla": {name: value for name, value in sla.items() if value is not None}, "sla_met": sla_met(job, now_s),
        "step": job.step, "total_steps": job.total_steps, "epoch": job.epoch, "loss": job.loss,
        "samples_per_s": job.samples_per_s, "recoveries": job.recoveries, "preemptions": job.preemptions,
        "resizes": job.resizes, "recovery_s": job.recovery_s / job.recoveries if job.recoveries else None,
        "reason": reason_of(job, newest, hold, tenant), "message": job.message,
        "metrics": job.result.get("metrics", {}), "metrics_left_out": job.result.get("left_out", 0),
        "plan": plan_view(seated),
    }  # fmt: skip


def plausible_forecast(at_s: float | None, now_s: float) -> float | None:
    """A forecast time, or None where it is too far away to mean anything.

    It may rest on the remaining work that another tenant's job reports, which may be any number.
    """
    return at_s if at_s is not None and at_s - now_s <= FURTHEST_S else None


def _expected_s(job: Job, hold: Hold | None, now_s: float) -> float | None:
    if hold is not None:
        return plausible_forecast(hold.expected_start_s, now_s)
    return job.back_off_until_s if backs_off(job) else None


def job_view(
    job: Job, labels: Mapping[str, str], live: Sequence[Generation], hold: Hold | None, now_s: float,
    tenant: str | None,
) -> JobView:  # fmt: skip
    return JobView(**job_fields(job, labels, live, hold, now_s, tenant))


def generation_views(every: Sequence[Generation], tenant: str | None) -> list[GenerationView]:
    """All generations of a job as this tenant may read them; plans that ran show their measured times."""
    plans = [generation.plan for generation in every if generation.plan is not None]
    measured = {plan["id"]: plan["measured_step_s"] for plan in plans if "measured_step_s" in plan}
    return [generation_view(generation, measured, tenant) for generation in every]


def generation_view(generation: Generation, measured: Mapping[str, float], tenant: str | None) -> GenerationView:
    return GenerationView(
        number=generation.number,
        phase=str(generation.phase),
        members=[MemberView(worker=m.worker, rank=m.rank, node=m.node) for m in generation.members],
        reason=ReasonView(code=generation.reason_code, text=redact_text(generation.reason, tenant)),
        created_s=generation.created_s,
        running_s=generation.running_s,
        ended_s=generation.ended_s,
        outcome=generation.outcome,
        plan=plan_view(generation, measured),
    )


def plan_view(generation: Generation | None, measured: Mapping[str, float] | None = None) -> PlanView | None:
    """The plan that the generation runs or ran; None before its ranks met. With measured times, also the other
    candidates."""
    if generation is None or generation.plan is None:
        return None
    rows = [] if measured is None else generation.plan.get("candidates", [])
    seen = measured or {}
    shown = [{**row, "measured_step_s": seen.get(row["id"])} for row in rows]
    return PlanView.model_validate({**generation.plan, "candidates": shown})


def node_views(
    nodes: Mapping[str, Node],
    workers: Mapping[str, Mapping[str, WorkerFact]],
    telemetry: Mapping[str, wire.Telemetry],
    more: Mapping[str, Mapping[str, Any]],
    tenant_of: Mapping[str, str],
    tenant: str | None,
) -> list[NodeView]:
    """All nodes, by name. A tenant sees only its own jobs there; None: all of them."""
    here: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    for job, facts in list(workers.items()):
        for worker, fact in list(facts.items()):
            if fact.holds_device:
                here[fact.node].append((fact.device, job, worker))
    views = []
    for name, node in sorted(nodes.items()):
        slots = [
            SlotView(device=device, job=job, tenant=tenant_of.get(job), worker=worker)
            if tenant is None or tenant_of.get(job) == tenant
            else SlotView(device=device)
            for device, job, worker in sorted(here[name])
        ]
        held = any(fact.node == name for facts in list(workers.values()) for fact in list(facts.values()))
        views.append(node_view(node, slots, telemetry.get(name), more.get(name, {}), held=held))
    return views


def node_view(
    node: Node, slots: list[SlotView], telemetry: wire.Telemetry | None, more: Mapping[str, Any], *, held: bool
) -> NodeView:
    return NodeView(
        name=node.name,
        state=node_state(node, held=held, waking=more.get("state") == "waking"),
        device_type=node.device_type,
        devices=node.devices,
        devices_used=len(slots),
        cpu=node.capacity.get("cpu", 0.0),
        memory_bytes=int(node.capacity.get("memory", 0)),
        speed=node.speed,
        cpu_fraction=telemetry.cpu_fraction if telemetry else None,
        memory_used_bytes=telemetry.memory_bytes if telemetry else None,
        isolation=str(more.get("isolation", "none")),
        jobs=sorted({slot.job for slot in slots if slot.job is not None}),
        warm=bool(more.get("warm", False)),
        slots=slots,
        temperature_c=telemetry.temperature_c if telemetry else None,
        power_w=telemetry.power_w if telemetry else None,
        grid_trouble=telemetry.grid_trouble if telemetry else "",
        places=[*node.path, *sorted(node.labels)],
    )


def node_state(node: Node, *, held: bool, waking: bool = False) -> str:
    """A word for the state of a node: a draining node is drained when no job holds a device of it."""
    if node.asleep and node.state is NodeState.READY:
        return "waking" if waking else "asleep"
    if node.state is NodeState.DRAINING:
        return "draining" if held else "drained"
    return "outdated" if node.outdated and node.state is NodeState.READY else str(node.state)


def spending_view(spending: Spending) -> SpendingView:
    return SpendingView(
        device_hours=spending.device_hours, per=spending.per, used_hours=spending.used_hours,
        since_s=spending.since_s, until_s=spending.until_s, used_up=spending.spent is not None,
    )  # fmt: skip


def tenant_view(
    tenant: Tenant, standing: TenantShare, devices: int, counts: Mapping[str, int], device_s: float,
    spending: Spending | None = None, people: Sequence[PersonView] = (),
) -> TenantView:  # fmt: skip
    waiting = counts.get(JobPhase.QUEUED, 0)
    ended = sum(counts.get(phase, 0) for phase in ENDED)
    return TenantView(
        name=tenant.name, weight=tenant.weight, quota=tenant.quota, sla=dict(tenant.sla),
        entitlement=standing.entitlement,
        devices=devices, running=sum(counts.values()) - waiting - ended, queued=waiting, device_s=device_s,
        policy=Policy.model_validate(dict(tenant.policy)).model_dump(mode="json"), budget=dict(tenant.budget),
        spending=None if spending is None else spending_view(spending), created_s=tenant.created_s,
        parent=tenant.parent, guarantee=dict(tenant.guarantee), most=dict(tenant.most), share=standing.share,
        devices_below=standing.below, borrowed=standing.borrowed, people=list(people),
    )  # fmt: skip


def person_view(person: str, label: str | None, devices: int, counts: Mapping[str, int]) -> PersonView:
    waiting = counts.get(JobPhase.QUEUED, 0)
    return PersonView(
        user=person, user_label=label, devices=devices, running=sum(counts.values()) - waiting, queued=waiting
    )


def token_view(token: Token) -> TokenView:
    return TokenView(
        id=token.id, tenant=token.tenant, role=str(token.role), label=token.label, created_s=token.created_s,
        expires_s=token.expires_s, revoked_s=token.revoked_s, used_s=token.used_s,
    )  # fmt: skip


def event_view(event: LoggedEvent, tenant: str | None) -> EventView:
    """An event as this tenant may read it; None: unredacted."""
    return EventView(
        id=event.id, time_s=event.time_s, kind=event.kind, text=redact_text(event.text, tenant), tenant=event.tenant,
        job=event.job, node=event.node, facts=redact_facts(event.facts, tenant),
    )  # fmt: skip
