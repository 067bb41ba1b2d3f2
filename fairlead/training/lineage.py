"""What a result came from, as the worker that wrote it knows it: data, seed, course, environment, and its hash."""

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
    """All that is needed to make the same again, and to see whether it is the same."""
    told: dict[str, Any] = {
        "weights": file_hash(folder / "output" / "model.safetensors"),
        "seed": session.seed,
        "environment": environment(),
    }
    if isinstance(session, CustomSession):
        return told | {"repeats": False, "why_not": "its loop is its own, and so is the order in which it computes"}
    why_not = _why_not(session)
    told |= {"samples": len(session.samples), "steps": session.step, "course": session.course.plain()}
    read = (getattr(each, "source", None) for each in (session.samples, session.eval_samples))
    told |= {"data": [source for source in read if source is not None]}
    if session.replay is not None:
        told["followed"] = session.course == session.replay
    return told | {"repeats": not why_not, "why_not": why_not}


def _why_not(session: Session) -> str:
    """Why the same course would not give the same bits; empty: it does."""
    if session.device.type != "cpu":
        return f"sums on {session.device.type} are not made in one order"
    if not session.course.whole:
        return "its shares changed more often than is written down"
    late = [plan for _, _, plan, _ in session.course.stretches if "·ps" in plan or plan.startswith("ps")]
    return f"under {late[0]} updates come in the order in which workers happen to be done" if late else ""


def environment() -> dict[str, Any]:
    """What else the bits of a result depend on."""
    return {
        "fairlead": fairlead.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "threads": torch.get_num_threads(),
    }


def file_hash(path: Path) -> str | None:
    """Of the file's content; None if there is none."""
    if not path.is_file():
        return None
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            hasher.update(piece)
    return f"sha256:{hasher.hexdigest()}"
