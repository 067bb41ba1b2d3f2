"""Runs a few steps of a Training under several plans in a separate process, and reads their times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from fairlead.planning.plan import Plan

TIMEOUT_S = 1800.0
ROUNDS = 4
"""Turns of each plan: what disturbs the machine for a while disturbs all plans."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one plan: the median step of its slowest rank, or the error."""

    step_s: float | None = None
    peak_bytes: int | None = None
    error: str = ""


def run_trials(
    run: str, params: Mapping[str, Any], plans: Sequence[Plan], steps: int, *, places: Sequence[Mapping[str, Any]] = (),
    folder: Path | None = None,
) -> list[Trial]:  # fmt: skip
    """Run ``steps`` steps under each plan, in turns; ``places`` are those of all workers."""
    question = {
        "run": run, "plans": [plan.to_plain() for plan in plans], "params": dict(params), "places": list(places),
        "rounds": ROUNDS, "steps": max(1, -(-steps // ROUNDS)), "folder": str(folder or Path.cwd()),
    }  # fmt: skip
    variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    if not any(place.get("interface") for place in places):
        variables.setdefault("GLOO_SOCKET_IFNAME", "lo")
    done = subprocess.run(
        [sys.executable, "-m", "fairlead.training.plan_benchmark"], input=json.dumps(question), capture_output=True,
        text=True, env=variables, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    return _read(done.stdout, done.stderr, done.returncode, len(plans))


def _read(out: str, err: str, code: int, plans: int) -> list[Trial]:
    """The answer is the last line; user code may print before it."""
    try:
        answer = json.loads(out.strip().rpartition("\n")[2])
    except ValueError:
        answer = {"error": err.strip().rpartition("\n")[2] or f"ended with code {code}"}
    if "error" in answer:
        return [Trial(error=answer["error"])] * plans
    return [_trial(one) for one in answer["taken"]]


def _trial(taken: Mapping[str, Any]) -> Trial:
    if taken["error"]:
        return Trial(error=taken["error"])
    return Trial(median(taken["step_s"]), max(taken["peak_bytes"]))
