"""One setting of the planning benchmark: what the planner thinks of it, and what its candidates really take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from benchmarks.platform import PROGRAMS
from benchmarks.settings import Setting
from fairlead.agent.embedded.emulation import emulated
from fairlead.home import Home
from fairlead.planning.cost import Estimate, estimate, fit_correction, plan_kind
from fairlead.planning.model_corrections import corrected
from fairlead.planning.naive_rule import naive_plan
from fairlead.planning.plan import Plan, plan_from
from fairlead.planning.plan_choice import MARGIN, choose_plan
from fairlead.planning.profiles import Hardware, Link, ModelProfile
from fairlead.planning.search import candidates
from fairlead.planning.topology import Topology
from fairlead.profiling.profile_cache import local_hardware, node_profile

HOPELESS = 4.0
"""Plans that are predicted to take so many times the best one's time are not run, except for DDP and one process."""

FAMILIES = 5
TAUGHT = 3
"""Rounds of the plans that teach how far predictions are off."""

PATIENCE_S = 1800.0


def hardware(home: Home, one: Setting) -> Hardware:
    """The workers of a setting as the planner sees them."""
    speed = one.bytes_per_s
    link = None if speed is None else Link(1e-4, speed)
    return local_hardware(node_profile(home), one.workers, link=link, given=tuple(one.cores))


def worth_running(model: ModelProfile, ground: Hardware, hopeless: float = HOPELESS) -> list[Estimate]:
    """The best of every family of exact plans, what everybody would do, what the rule of sizes and the platform say."""
    found = candidates(model, ground, keep=40, on_paper=False)
    best = found[0].step_s
    firsts: dict[tuple[object, ...], Estimate] = {}
    for one in found:
        plan = one.plan
        family = (plan.data, plan.tensor, plan.pipeline, plan.sync, plan.sharded, plan.buckets, plan.bucket_bytes)
        if one.fits and plan.exact and one.step_s < hopeless * best:
            firsts.setdefault(family, one)
    kept = list(firsts.values())[:FAMILIES]
    usual = [one for one in found if one.plan.id in ("ddp", "single")]
    rule = estimate(model, Topology(ground), naive_plan(model, ground))
    return list({one.plan.id: one for one in [*kept, *usual, rule, platforms(model, ground)]}.values())


def platforms(model: ModelProfile, ground: Hardware) -> Estimate:
    """What a gang of the platform would run: the planner's first, or replicas where it is hardly faster."""
    return choose_plan(model, ground, margin=MARGIN).estimate


def run_turns(one: Setting, plans: Sequence[Plan], rounds: int, window_s: float = 0.4) -> list[dict[str, Any]]:
    """All plans, taking turns: for each, seconds and cpu seconds per step of every window, or an error."""
    with emulated(one.workers, one.bytes_per_s, 0.0, one.cores) as places:
        question = {
            "run": "zoo.py:training", "params": {"model": one.model}, "plans": [plan.to_plain() for plan in plans],
            "rounds": rounds, "window_s": window_s, "places": [asdict(place) for place in places],
            "folder": str(PROGRAMS),
        }  # fmt: skip
        variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        if one.bytes_per_s is None:
            variables["GLOO_SOCKET_IFNAME"] = "lo"
        done = subprocess.run(
            [sys.executable, "-m", "fairlead.training.plan_benchmark"], input=json.dumps(question), capture_output=True,
            text=True, env=variables, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    lines = done.stdout.strip().splitlines()
    answer = json.loads(lines[-1]) if lines else {"error": done.stderr.strip().rpartition("\n")[2]}
    if "error" in answer:
        raise RuntimeError(f"{one.id}: {answer['error']}")
    taken: list[dict[str, Any]] = answer["taken"]
    return taken


def calibrated(name: str, model: ModelProfile, home: Home) -> ModelProfile:
    """The model with what a few steps of plans of every kind teach, on two equal workers without a slow link."""
    one = Setting(name, 2, "loopback", "equal")
    ground = Topology(hardware(home, one))
    found = worth_running(model, ground.hardware, hopeless=2 * HOPELESS)
    ratios: dict[str, list[float]] = {}
    for each, taken in zip(found, run_turns(one, [each.plan for each in found], TAUGHT), strict=True):
        if taken["step_s"] and not taken["error"]:
            slower = fit_correction(model, ground, each.plan, median(taken["step_s"]))
            ratios.setdefault(plan_kind(each.plan), []).append(slower)
    return corrected(model, ground.hardware, {name: median(seen) for name, seen in ratios.items()})


def predicted_again(one: Setting, found: dict[str, Any], model: ModelProfile, home: Home) -> dict[str, Any] | None:
    """The setting as it was measured, with predictions of today; None where a plan is chosen now that was not run.

    Older files name plans without saying what they were: those that are still looked at are known by their name.
    """
    ground = hardware(home, one)
    now = worth_running(model, ground)
    first, chosen = now[0].plan.id, platforms(model, ground).plan.id
    if not {first, chosen} <= {row["id"] for row in found["candidates"]}:
        return None
    named = {each.plan.id: each.plan for each in now}
    rows = []
    for row in found["candidates"]:
        plan = plan_from(row["plan"]) if "plan" in row else named.get(row["id"])
        if plan is not None:
            again = estimate(model, Topology(ground), plan)
            rows.append(row | {"plan": plan.to_plain(), "predicted_s": again.step_s, "parts": dict(again.parts)})
    return found | {"chosen": chosen, "first": first, "rule": naive_plan(model, ground).id, "candidates": rows}


def compared(one: Setting, model: ModelProfile, home: Home, rounds: int) -> dict[str, Any]:
    """The setting with its candidates as predicted and as measured."""
    ground = hardware(home, one)
    found = worth_running(model, ground)
    load = os.getloadavg()[0]
    taken = run_turns(one, [each.plan for each in found], rounds)
    rows = [
        {"id": each.plan.id, "kind": plan_kind(each.plan), "plan": each.plan.to_plain(), "predicted_s": each.step_s,
         "parts": dict(each.parts), "step_s": seen["step_s"], "error": seen["error"],
         "cpu_s": [median(column) for column in zip(*seen["cpu_s"], strict=True)]}
        for each, seen in zip(found, taken, strict=True)
    ]  # fmt: skip
    return {
        "chosen": platforms(model, ground).plan.id, "first": found[0].plan.id, "rule": naive_plan(model, ground).id,
        "candidates": rows,
        "load": [load, os.getloadavg()[0]],
    }  # fmt: skip
