"""A plain CSV that anybody can write: one line per job, with a header.

Columns: ``id, arrival_s, duration_s, devices``, and where wanted ``tenant``, ``weight``, ``deadline_s`` (on the clock
of the arrivals), ``min_devices`` and ``max_devices`` (an elastic gang), ``serial`` (the part of the work that does not
speed up, 0.05) and ``speed.TYPE`` (relative to the devices on which it takes ``duration_s``; an empty field: it does
not run on this type). Where it sits: ``over.nodes``, ``over.racks`` and ``over.zones`` (its speed on a gang that is
spread so widely, relative to one node), ``only`` and ``near`` (zones, racks, nodes or labels, with spaces between),
``cpu`` and ``memory`` (of one worker), and ``class`` (for what it does to jobs beside it).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairlead.errors import InvalidSpec
from fairlead.scheduling.curves import SpeedCurve
from fairlead.simulation.formats.recorded import ANY, Everywhere
from fairlead.simulation.trace import Clock, Trace, TraceJob

NEEDED = {"arrival_s", "duration_s", "devices"}
ROUND_S = 60.0
RESTART_S = 30.0
SERIAL = 0.05
ALIKE: Mapping[str, float] = {ANY: 1.0}
"""Of a job that says nothing about types: it is as fast on all of them."""


def looks_like(path: Path, head: str) -> bool:
    return set(_names(head.split("\n", 1)[0].split(","))) >= NEEDED


def _names(header: Sequence[str]) -> list[str]:
    return [name.strip().lower() for name in header]


def read(path: Path, speeds: Path | None = None, *, tenant_column: str | None = None) -> Trace:
    """The jobs of such a file; decisions are made at arrivals and completions, and every minute."""
    with path.open(newline="") as file:
        lines = csv.reader(file)
        header = _names(next(lines, []))
        missing = NEEDED.difference(header)
        if missing:
            raise InvalidSpec(f"the column {min(missing)} is missing", field=path.name, fix=f"have {sorted(NEEDED)}")
        column = chosen(tenant_column and tenant_column.lower(), header) or "tenant"
        rows = [dict(zip(header, line, strict=False)) for line in lines if any(line)]
    curves: dict[tuple[object, ...], SpeedCurve] = {}
    jobs = [_job(number, row, curves, column) for number, row in enumerate(rows)]
    return Trace(path.name, "csv", jobs, ROUND_S, RESTART_S, clock=Clock.EVENTS)


def chosen(column: str | None, header: Sequence[str]) -> str | None:
    """The column that is to say whose a job is, if one was named; one that is not there is refused."""
    if column is not None and column not in header:
        raise InvalidSpec(f"there is no column {column}", field="--tenants", fix=f"one of {', '.join(header)}")
    return column


class ScaledJob:
    """Seconds of work on the gang it asked for; more devices speed it up by Amdahl's law."""

    def __init__(self, seconds: float, curve: SpeedCurve) -> None:
        self.work, self._curve = seconds, curve

    def rate(self, done: float, device_type: str, spread: Sequence[int]) -> float:
        return self._curve.speed(device_type, sum(spread), min(1, len(spread) - 1))

    def changes_at(self, done: float) -> float:
        return math.inf

    def curve(self, done: float) -> SpeedCurve:
        return self._curve

    def declared_work_left(self, done: float) -> float:
        return self.work - done


def _job(number: int, row: Mapping[str, str], curves: dict[tuple[object, ...], SpeedCurve], tenant: str) -> TraceJob:
    line = f"line {number + 2}"
    asked = int(_number(row, "devices", line))
    low, high = int(_number(row, "min_devices", line, asked)), int(_number(row, "max_devices", line, asked))
    if not 1 <= low <= asked <= high:
        raise InvalidSpec(f"{asked} devices are not between {low} and {high}", field=line)
    serial = _number(row, "serial", line, SERIAL)
    types = _types(row, line)
    over = _over(row, line)
    key = (low, asked, high, serial, tuple(sorted(types.items())), over)
    if key not in curves:
        curves[key] = amdahl(low, asked, high, serial, types, over)
    seconds, arrival_s = _number(row, "duration_s", line), _number(row, "arrival_s", line)
    deadline = row.get("deadline_s", "").strip()
    return TraceJob(
        row.get("id") or str(number), arrival_s, ScaledJob(seconds, curves[key]), low, high,
        tenant=row.get(tenant) or "all", weight=_number(row, "weight", line, 1.0),
        deadline_s=float(deadline) if deadline else None, exclusive_s=seconds / max(types.values()), asked=asked,
        asked_model=ScaledJob(seconds, curves[key]), first_start_s=0.0, only=_names_in(row, "only"),
        near=_names_in(row, "near"),
        demand={name: _number(row, name, line) for name in ("cpu", "memory") if (row.get(name) or "").strip()},
        facts={"class": row["class"].strip()} if (row.get("class") or "").strip() else {},
    )  # fmt: skip


def amdahl(
    low: int, asked: int, high: int, serial: float, types: Mapping[str, float], over: Sequence[float] = (1.0,)
) -> SpeedCurve:
    """1 on the gang it asked for; the parallel part of the work shrinks with the number of devices.

    ``over`` are relative speeds over several nodes, racks, zones; one worker is never spread.
    """
    sizes = tuple(range(low, high + 1))

    def seconds(size: int) -> float:
        return serial + (1.0 - serial) / size

    row = tuple(seconds(asked) / seconds(size) for size in sizes)
    rows = {name: tuple(speed * relative for speed in row) for name, relative in types.items()}
    speeds = {name: (near, *(tuple(part * speed for speed in near) for part in over)) for name, near in rows.items()}
    return SpeedCurve(sizes, Everywhere(speeds[ANY]) if types is ALIKE else speeds)


def _over(row: Mapping[str, str], line: str) -> tuple[float, ...]:
    """Relative speeds over nodes, racks and zones; what is not said is as the narrower one."""
    found = [1.0]
    for name in ("over.nodes", "over.racks", "over.zones"):
        found.append(_number(row, name, line, found[-1]))
    return tuple(found[1:]) if len(set(found)) > 1 else (1.0,)


def _names_in(row: Mapping[str, str], column: str) -> frozenset[str]:
    return frozenset((row.get(column) or "").split())


def _types(row: Mapping[str, str], line: str) -> Mapping[str, float]:
    given = {name.removeprefix("speed."): text for name, text in row.items() if name.startswith("speed.")}
    if not given:
        return ALIKE
    found = {name: _number(row, f"speed.{name}", line) for name, text in given.items() if text.strip()}
    if not found or min(found.values()) <= 0:
        raise InvalidSpec("it runs on no type of device", field=line)
    return found


def _number(row: Mapping[str, str], name: str, line: str, default: float | None = None) -> float:
    text = (row.get(name) or "").strip()
    if not text and default is not None:
        return float(default)
    try:
        value = float(text)
    except ValueError as error:
        raise InvalidSpec(f"{name} is {text!r}, not a number", field=line) from error
    if not math.isfinite(value) or value < 0:
        raise InvalidSpec(f"{name} is {text}, which cannot be", field=line)
    return value
