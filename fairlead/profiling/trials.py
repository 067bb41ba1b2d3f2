"""Asks a process of its own to run a few steps of a Training under a plan, and reads how long they took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.planning.plan import Plan

PATIENCE_S = 1800.0


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it: the slowest rank's step, or why there is none."""

    step_s: float | None = None
    peak_bytes: int | None = None
    error: str = ""


def run_trial(
    run: str, params: Mapping[str, Any], plan: Plan, steps: int, *, places: Sequence[Mapping[str, Any]] = (),
    folder: Path | None = None,
) -> Trial:  # fmt: skip
    """A few steps under this plan; ``places`` are those of all workers, of which the plan may use some."""
    question = {
        "run": run, "plan": plan.to_plain(), "steps": steps, "params": dict(params), "places": list(places),
        "folder": str(folder or Path.cwd()),
    }  # fmt: skip
    variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    if not any(place.get("interface") for place in places):
        variables.setdefault("GLOO_SOCKET_IFNAME", "lo")
    done = subprocess.run(
        [sys.executable, "-m", "fairlead.training.measure"], input=json.dumps(question), capture_output=True,
        text=True, env=variables, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    return _read(done.stdout, done.stderr, done.returncode)


def _read(out: str, err: str, code: int) -> Trial:
    """The answer is the last line; what user code prints comes before it."""
    try:
        told = json.loads(out.strip().rpartition("\n")[2])
    except ValueError:
        return Trial(error=err.strip().rpartition("\n")[2] or f"ended with code {code}")
    if told["error"]:
        return Trial(error=told["error"])
    return Trial(max(told["step_s"]), max(told["peak_bytes"]))
