"""Explains in one sentence each why a plan was chosen and why another was not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.planning.cost import PARTS, Estimate

PART_NAMES: Mapping[str, str] = {
    "compute": "computing", "exchange": "exchanging gradients and parameters",
    "tensor exchange": "exchanges within layers", "bubble": "idle stages", "optimiser": "updating parameters",
    "input": "fetching samples", "waiting": "waiting for slower workers",
}  # fmt: skip


def explain_plans(candidates: Sequence[Estimate]) -> list[str]:
    """One reason per candidate; the first candidate is the chosen one."""
    chosen = candidates[0]
    usual = next((one for one in candidates if one.plan.id == "ddp"), None)
    return [_why_chosen(chosen, usual), *(_why_not_chosen(one, chosen) for one in candidates[1:])]


def plan_row(one: Estimate, why: str, measured_step_s: float | None = None) -> dict[str, Any]:
    """A candidate as a row for tables and JSON; the bottleneck of one that does not fit is memory."""
    plan = one.plan
    return {
        "id": plan.id, "data": plan.data, "tensor": plan.tensor, "pipeline": plan.pipeline,
        "microbatches": plan.microbatches, "schedule": plan.schedule, "sync": plan.sync, "sharded": plan.sharded,
        "workers_used": plan.workers_used, "step_s": one.step_s, "samples_per_s": one.samples_per_s,
        "memory_bytes": int(one.memory_bytes), "bottleneck": one.bottleneck if one.fits else "memory", "reason": why,
        "measured_step_s": measured_step_s,
    }  # fmt: skip


def _why_chosen(one: Estimate, usual: Estimate | None) -> str:
    share = one.parts.get(one.bottleneck, 0.0) / one.step_s if one.step_s else 0.0
    part = PART_NAMES[one.bottleneck]
    reason = f"fastest of all that fit: {share:.0%} of the step is {part}"
    if one.plan.workers_used == 1:
        reason = f"one process is fastest, exchanges would cost more than they save: {share:.0%} {part}"
    if usual is None or usual.plan.id == one.plan.id:
        return reason
    if not usual.fits:
        return f"{reason}; plain DDP does not fit into memory"
    saved = _largest_saving(one, usual)
    return f"{reason}; {usual.adjusted_step_s / one.adjusted_step_s:.2f} times as fast as plain DDP" + (
        f", {saved}" if saved else ""
    )


def _largest_saving(one: Estimate, usual: Estimate) -> str:
    gains = {part: usual.parts.get(part, 0.0) - one.parts.get(part, 0.0) for part in PARTS}
    most = max(gains, key=lambda part: gains[part])
    if gains[most] <= 0:
        return ""
    return f"which spends {_ms(usual.parts[most])} on {PART_NAMES[most]} instead of {_ms(one.parts[most])}"


def _why_not_chosen(one: Estimate, chosen: Estimate) -> str:
    if not one.fits:
        return "does not fit into memory"
    slower = one.adjusted_step_s / chosen.adjusted_step_s
    if slower < 1.005:
        return "as fast as the chosen one"
    losses = {part: one.parts.get(part, 0.0) - chosen.parts.get(part, 0.0) for part in PARTS}
    most = max(losses, key=lambda part: losses[part])
    more = f", mostly by {PART_NAMES[most]} ({_ms(one.parts[most])})" if losses[most] > 0 else ""
    steps = f", needs {one.steps_factor:.2f} times the steps" if one.steps_factor > 1 else ""
    return f"{slower:.2f} times the time{more}{steps}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
