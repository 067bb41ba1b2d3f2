"""Reads a plain CSV: one line per job, with a header.

Columns: ``id, arrival_s, duration_s, devices``, and where wanted ``tenant``, ``weight``, ``deadline_s`` (on the clock
of the arrivals), ``min_devices`` and ``max_devices`` (an elastic gang), ``serial`` (the part of the work that does not
speed up, 0.05) and ``speed.TYPE`` (relative to the devices on which it takes ``duration_s``; an empty field: it does
not run on this type). Where it sits: ``over.nodes``, ``over.racks`` and ``over.zones`` (its speed on a gang that is
spread so widely, relative to one node), ``only`` and ``near`` (zones, racks, nodes or labels, with spaces between),
``cpu`` and ``memory`` (of one worker), and ``class`` (for what it does to jobs beside it).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairlead.errors import InvalidSpec
from fairlead.scheduling.curves import SpeedCurve
from fairlead.simulation.trace import Clock, Trace, TraceJob
from fairlead.simulation.trace_formats.cells import LATEST_S, LONGEST_S, Row, rows_of
from fairlead.simulation.trace_formats.recorded import ANY, UniformSpeeds

NEEDED = {"arrival_s", "duration_s", "devices"}
ROUND_S = 60.0
RESTART_S = 30.0
SERIAL = 0.05
MOST = 100_000
"""Devices that a gang may grow to where nobody says how many there are."""
ALIKE: Mapping[str, float] = {ANY: 1.0}
"""Of a job that says nothing about types: it is as fast on all of them."""


def looks_like(path: Path, head: str) -> bool:
    return set(_names(head.split("\n", 1)[0].split(","))) >= NEEDED


def _names(header: Sequence[str]) -> list[str]:
    return [name.strip().lower() for name in header]


def read(path: Path, speeds: Path | None = None, *, tenant_column: str | None = None, most: int = MOST) -> Trace:
    """The jobs of such a file; decisions are made at arrivals and completions, and every minute.

    No gang grows wider than ``most``, the devices there are.
    """
    header, rows = rows_of(path, lower=True)
    missing = NEEDED.difference(header)
    if missing:
        raise InvalidSpec(f"the column {min(missing)} is missing", field=path.name, fix=f"have {sorted(NEEDED)}")
    column = chosen(tenant_column and tenant_column.lower(), header) or "tenant"
    curves: dict[tuple[object, ...], SpeedCurve] = {}
    jobs = [_job(number, row, curves, column, most) for number, row in enumerate(rows)]
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


def _job(number: int, row: Row, curves: dict[tuple[object, ...], SpeedCurve], tenant: str, most: int) -> TraceJob:
    asked = row.whole("devices", least=1)
    low, high = row.whole("min_devices", asked, least=1), row.whole("max_devices", asked)
    if not low <= asked <= high:
        fix = "write devices from min_devices to max_devices"
        raise InvalidSpec(f"{asked} devices are not between {low} and {high}", field=row.at("devices"), fix=fix)
    high = min(high, max(asked, most))
    serial = row.number("serial", SERIAL, most=1.0)
    types = _types(row)
    over = _over(row)
    key = (low, asked, high, serial, tuple(sorted(types.items())), over)
    if key not in curves:
        curves[key] = amdahl(low, asked, high, serial, types, over)
    seconds, arrival_s = row.number("duration_s", most=LONGEST_S), row.number("arrival_s", most=LATEST_S)
    deadline_s = row.number("deadline_s", math.inf, most=LATEST_S)
    needs = [name for name in ("cpu", "memory") if row.text(name, "")]
    return TraceJob(
        row.text("id", str(number)), arrival_s, ScaledJob(seconds, curves[key]), low, high,
        tenant=row.text(tenant, "all"), weight=row.number("weight", 1.0, above=0.0),
        deadline_s=deadline_s if deadline_s < math.inf else None, exclusive_s=seconds / max(types.values()),
        asked=asked, asked_model=ScaledJob(seconds, curves[key]), first_start_s=0.0, only=_names_in(row, "only"),
        near=_names_in(row, "near"),
        demand={name: row.number(name) for name in needs},
        facts={"class": row.text("class")} if row.text("class", "") else {},
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
    return SpeedCurve(sizes, UniformSpeeds(speeds[ANY]) if types is ALIKE else speeds)


def _over(row: Row) -> tuple[float, ...]:
    """Relative speeds over nodes, racks and zones; what is not said is as the narrower one."""
    found = [1.0]
    for name in ("over.nodes", "over.racks", "over.zones"):
        found.append(row.number(name, found[-1]))
    return tuple(found[1:]) if len(set(found)) > 1 else (1.0,)


def _names_in(row: Row, column: str) -> frozenset[str]:
    return frozenset(row.text(column, "").split())


def _types(row: Row) -> Mapping[str, float]:
    given = [name for name in row.cells if name.startswith("speed.")]
    if not given:
        return ALIKE
    found = {name.removeprefix("speed."): row.number(name, above=0.0) for name in given if row.text(name, "")}
    if not found:
        raise InvalidSpec("it runs on no type of device", field=row.at(given[0]), fix="write the speed on some type")
    return found
