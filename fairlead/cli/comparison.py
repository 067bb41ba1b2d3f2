"""Compares simulated policies: the table, plots and figures of simulate and what-if."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fairlead.cli import output
from fairlead.cli.text_tables import Column

if TYPE_CHECKING:
    from fairlead.simulation.engine import Progress
    from fairlead.simulation.outcome import Outcome
    from fairlead.simulation.trace import Trace

Figures = dict[str, float | int | None]


def progress(quiet: bool) -> Callable[[str], Progress | None]:
    """A progress bar per policy on stderr, if that is a terminal."""
    import sys

    if quiet or not sys.stderr.isatty():
        return lambda name: None
    from fairlead.cli.progress import Bar

    return Bar


def finite(figures: Figures) -> Figures:
    return {
        name: value if value is None or isinstance(value, int) or math.isfinite(value) else None
        for name, value in figures.items()
    }


def write(outcomes: dict[str, Outcome], figures: dict[str, Figures], folder: Path, *, quiet: bool) -> None:
    import json

    from fairlead.simulation.plots import draw

    written = draw(outcomes, folder)
    path = folder / "figures.json"
    path.write_text(json.dumps(figures, indent=1) + "\n")
    if not quiet:
        output.line(f"wrote {len(written)} plots and {path.name} to {folder}")


def table(trace: Trace, devices: int, figures: dict[str, Figures]) -> None:
    output.line(f"{trace.name}: {len(trace.jobs)} jobs ({trace.format}) on {devices} devices, simulated")
    columns = [
        Column("POLICY"), Column("AVG JCT", right=True), Column("P50", right=True, from_width=90),
        Column("P99", right=True), Column("MAKESPAN", right=True), Column("WORST RHO", right=True),
        Column("UNFAIR", right=True), Column("UTILISATION", right=True),
        Column("DEADLINES", right=True, from_width=100),
        Column("JAIN", right=True, from_width=100), Column("RESTARTS", right=True, from_width=110),
        Column("KWH", right=True, from_width=120), Column("DECIDE MS", right=True, from_width=130),
    ]  # fmt: skip
    output.table(columns, [_row(name, values) for name, values in figures.items()], empty="no policies")
    output.legend(
        "JCT: completion time from submission (average; P50, P99); MAKESPAN: until the last job ends; RHO: JCT divided "
        "by JCT with a fair share (1 is fair); UNFAIR: jobs with RHO above 1.05; UTILISATION: of all devices"
    )


def _row(name: str, values: Figures) -> list[str]:
    def time(key: str) -> str:
        return output.duration(values[key])

    def number(key: str, places: int = 2, times: float = 1.0) -> str:
        value = values[key]
        return "–" if value is None else f"{value * times:.{places}f}"

    return [
        name, time("avg_jct_s"), time("p50_jct_s"), time("p99_jct_s"), time("makespan_s"), number("worst_rho"),
        output.percent(values["unfair_fraction"]), output.percent(values["utilisation"]),
        "–" if values["deadlines_met"] is None else output.percent(values["deadlines_met"]), number("jain", 3),
        number("restarts_per_job", 1), number("energy_kwh", 0), number("decide_cpu_s_mean", 1, 1e3),
    ]  # fmt: skip
