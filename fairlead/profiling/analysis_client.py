"""Profiles a user's Training in a separate process, so that no user code runs in the caller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.errors import FairleadError, InvalidSpec, JobFailed
from fairlead.planning.profiles import ModelProfile, model_from

TIMEOUT_S = 900.0


def ask_for_profile(
    run: str, params: Mapping[str, Any], *, device: str | None = None, folder: Path | None = None
) -> ModelProfile:
    """The profile of ``file.py:function``; with ``device``, calibrated by steps measured on this machine."""
    with tempfile.TemporaryDirectory(prefix="fairlead-plan-") as place:
        request, answer = Path(place) / "request.json", Path(place) / "answer.json"
        request.write_text(json.dumps({"run": run, "params": dict(params), "device": device}), encoding="utf-8")
        command = [sys.executable, "-m", "fairlead.profiling.analysis_process", str(request), str(answer)]
        quiet = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            command, cwd=folder, env=quiet, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        if not answer.is_file():
            last_line = done.stderr.strip().rpartition("\n")[2]
            raise JobFailed(f"profiling {run} ended with code {done.returncode}: {last_line}", field="run")
        answered = json.loads(answer.read_text(encoding="utf-8"))
    return _read(answered, run)


def _read(answered: dict[str, Any], run: str) -> ModelProfile:
    if "problem" in answered:
        raise FairleadError.from_problem(answered["problem"])
    if "error" in answered:
        raise InvalidSpec(answered["error"], field=run, fix="fix the function; it must run as it is")
    return model_from(answered["profile"])
