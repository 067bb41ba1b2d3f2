"""The lineage of a result, as the worker that wrote it knows it: data, seed, schedule, environment, and its hash."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fairlead
from fairlead.training.custom_loop.session import CustomSession
from fairlead.training.session import Session

PIECE_BYTES = 1 << 20


def lineage(session: Session | CustomSession, folder: Path) -> dict[str, Any]:
    """All that is needed to repeat the run, and to check whether the result is the same."""
    facts: dict[str, Any] = {
        "weights": file_hash(folder / "output" / "model.safetensors"),
        "seed": session.seed,
        "environment": environment(),
    }
    if isinstance(session, CustomSession):
        return facts | {"repeats": False, "why_not": "it has a custom loop, which decides in which order it computes"}
    why_not = _why_not(session)
    facts |= {"samples": len(session.samples), "steps": session.step, "course": session.run_schedule.to_plain()}
    read = (getattr(each, "source", None) for each in (session.samples, session.eval_samples))
    facts |= {"data": [source for source in read if source is not None]}
    if session.replayed_schedule is not None:
        facts["followed"] = session.run_schedule == session.replayed_schedule
    return facts | {"repeats": not why_not, "why_not": why_not}


def _why_not(session: Session) -> str:
    """Why a rerun on the same schedule would not give the same bits; empty: it would."""
    if session.device.type != "cpu":
        return f"{session.device.type} adds in no fixed order"
    if not session.run_schedule.complete:
        return "its shares changed more often than the schedule records"
    late = [plan for _, _, plan, _ in session.run_schedule.entries if "·ps" in plan or plan.startswith("ps")]
    return f"under {late[0]} updates come in the order in which workers finish" if late else ""


def environment() -> dict[str, Any]:
    """The software and hardware that the bits of a result depend on."""
    return {
        "fairlead": fairlead.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "threads": torch.get_num_threads(),
    }


def file_hash(path: Path) -> str | None:
    """SHA-256 of the file's content; None if there is no file."""
    if not path.is_file():
        return None
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            hasher.update(piece)
    return f"sha256:{hasher.hexdigest()}"
