"""Reads any trace, by the name of its format or by its first lines."""

from __future__ import annotations

import inspect
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from fairlead.errors import InvalidSpec, NotFound
from fairlead.simulation.trace import Trace

FORMATS = {
    "gavel": "gavel",
    "shockwave": "shockwave",
    "sia": "sia",
    "pollux": "pollux",
    "elasticflow": "elasticflow",
    "tiresias": "tiresias",
    "philly": "philly",
    "sacct": "sacct",
    "csv": "plain",
}
WITHOUT_SPEEDS = {"tiresias", "sacct", "csv"}
HEAD = 4096


def read_trace(
    path: Path, name: str = "auto", speeds: Path | None = None, *, tenant_column: str | None = None,
    devices: int | None = None,
) -> Trace:  # fmt: skip
    """The trace in this file; ``speeds`` is a table or a folder of tables for formats that have them.

    ``devices`` is how many there are, if that is known: no gang needs to be thought of that is wider.
    """
    if not path.is_file():
        raise NotFound(f"there is no trace {path}", field="TRACE", fix="name the file with the recorded jobs")
    if speeds is not None and not speeds.exists():
        raise NotFound(f"there are no speeds at {speeds}", field="--speeds")
    chosen = detect(path) if name == "auto" else name
    if chosen not in FORMATS:
        raise InvalidSpec(f"there is no format {name!r}", field="--format", fix=f"one of auto, {', '.join(FORMATS)}")
    if speeds is not None and chosen in WITHOUT_SPEEDS:
        text = f"a trace of format {chosen} says itself how fast its jobs are"
        raise InvalidSpec(text, field="--speeds", fix="leave it out, or name another format with --format")
    read = _module(chosen).read
    extra: dict[str, Any] = {}
    if devices is not None and "most" in inspect.signature(read).parameters:
        extra["most"] = devices
    if tenant_column is not None:
        if "tenant_column" not in inspect.signature(read).parameters:
            raise InvalidSpec(f"format {chosen} has no column to choose tenants from", field="--tenants")
        extra["tenant_column"] = tenant_column
    try:
        trace: Trace = read(path, speeds, **extra)
    except (ValueError, KeyError, IndexError, UnicodeDecodeError) as error:
        reason = f"this is not a trace of format {chosen}: {type(error).__name__}: {error}"
        raise InvalidSpec(reason, field=path.name, fix="name the right one with --format") from error
    if not trace.jobs:
        none = f": all {trace.left_out} rows had no devices or never ran" if trace.left_out else ": it has no rows"
        raise InvalidSpec(f"there are no jobs in this trace{none}", field=path.name, fix="name a file with jobs")
    twice = [name for name, count in Counter(job.id for job in trace.jobs).items() if count > 1]
    if twice:
        text = (
            f"{len(twice)} ids are of several jobs, {twice[0]!r} for example"
            if twice[1:]
            else (f"two jobs are called {twice[0]!r}")
        )
        raise InvalidSpec(text, field=path.name, fix="give every job an id of its own")
    return trace


def detect(path: Path) -> str:
    """The format with these first lines."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        head = file.read(HEAD)
    if not head.strip():
        raise InvalidSpec("the file is empty", field=path.name, fix="name a file with jobs")
    for name in FORMATS:
        if _module(name).looks_like(path, head):
            return name
    fix = f"name it with --format: {', '.join(FORMATS)}"
    raise InvalidSpec("its first lines look like no trace that is known", field=path.name, fix=fix)


def _module(name: str) -> Any:
    return import_module(f"fairlead.simulation.trace_formats.{FORMATS[name]}")
