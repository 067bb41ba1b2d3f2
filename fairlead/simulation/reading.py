"""Reading any trace: by the name of its format, or by what its first lines look like."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

from fairlead.errors import InvalidSpec, NotFound
from fairlead.simulation.trace import Trace

FORMATS = {
    "gavel": "gavel",
    "shockwave": "shockwave",
    "pollux": "pollux",
    "elasticflow": "elasticflow",
    "tiresias": "tiresias",
    "philly": "philly",
    "sacct": "sacct",
    "csv": "plain",
}
HEAD = 4096


def read_trace(
    path: Path, name: str = "auto", speeds: Path | None = None, *, tenant_column: str | None = None
) -> Trace:
    """The trace in this file; ``speeds`` is a table or a folder of tables for formats that have them."""
    if not path.is_file():
        raise NotFound(f"there is no trace {path}", field="TRACE", fix="name the file with the recorded jobs")
    if speeds is not None and not speeds.exists():
        raise NotFound(f"there are no speeds at {speeds}", field="--speeds")
    chosen = detect(path) if name == "auto" else name
    if chosen not in FORMATS:
        raise InvalidSpec(f"there is no format {name!r}", field="--format", fix=f"one of auto, {', '.join(FORMATS)}")
    read = _module(chosen).read
    extra: dict[str, Any] = {}
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
        raise InvalidSpec("there are no jobs in this trace", field=path.name)
    return trace


def detect(path: Path) -> str:
    """The format whose first lines these are."""
    with path.open(encoding="utf-8", errors="replace") as file:
        head = file.read(HEAD)
    for name in FORMATS:
        if _module(name).looks_like(path, head):
            return name
    fix = f"name it with --format: {', '.join(FORMATS)}"
    raise InvalidSpec("its first lines look like no trace that is known", field=path.name, fix=fix)


def _module(name: str) -> Any:
    return import_module(f"fairlead.simulation.formats.{FORMATS[name]}")
