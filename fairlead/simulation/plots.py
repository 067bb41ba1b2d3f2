"""Plots simulations: completion times, device use, tenants' shares, and a Gantt chart of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairlead.errors import Refused
from fairlead.simulation.outcome import Outcome

INK = "#333333"
HOUR_S = 3600.0
MOST_BARS = 4000


def draw(outcomes: Mapping[str, Outcome], folder: Path) -> list[Path]:
    """Write all plots into this folder; returns their paths."""
    try:
        import matplotlib
    except ImportError as error:
        raise Refused("plots need matplotlib", field="--out", fix="pip install 'fairlead[simulation]'") from error
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    written = [_completion(outcomes, folder / "jct-cdf.png"), _use(outcomes, folder / "utilisation.png")]
    for name, outcome in outcomes.items():
        written.append(_shares(outcome, name, folder / f"shares-{name}.png"))
        written.append(_gantt(outcome, name, folder / f"gantt-{name}.png"))
    return written


def _axes(title: str, across: str, up: str) -> tuple[Any, Any]:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.6), dpi=130, layout="constrained")
    axes.set_title(title, loc="left", color=INK)
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(up, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    return figure, axes


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path)
    pyplot.close(figure)
    return path


def _completion(outcomes: Mapping[str, Outcome], path: Path) -> Path:
    figure, axes = _axes("Job completion times", "hours from arrival to completion", "part of the jobs")
    for name, outcome in outcomes.items():
        hours = sorted(job.jct_s / HOUR_S for job in outcome.jobs)
        axes.step(hours, [(at + 1) / len(hours) for at in range(len(hours))], where="post", label=name)
    axes.set_xscale("log")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, labelcolor=INK)
    return _save(figure, path)


def _use(outcomes: Mapping[str, Outcome], path: Path) -> Path:
    figure, axes = _axes("Devices in use", "hours", "part of the devices")
    for name, outcome in outcomes.items():
        times = [(when - outcome.began_s) / HOUR_S for when, _ in outcome.busy]
        axes.step(times, [count / outcome.devices for _, count in outcome.busy], where="post", label=name, lw=1)
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False, labelcolor=INK)
    return _save(figure, path)


def _shares(outcome: Outcome, name: str, path: Path) -> Path:
    figure, axes = _axes(f"Devices by tenant under {name}", "hours", "devices")
    tenants = sorted({tenant for _, used in outcome.shares for tenant in used})
    times = [(when - outcome.began_s) / HOUR_S for when, _ in outcome.shares]
    rows = [[used.get(tenant, 0) for _, used in outcome.shares] for tenant in tenants]
    if rows:
        axes.stackplot(times, rows, labels=tenants, step="post", lw=0)
        axes.legend(frameon=False, labelcolor=INK, fontsize=8, loc="upper right")
    axes.set_ylim(0, outcome.devices)
    return _save(figure, path)


def _gantt(outcome: Outcome, name: str, path: Path) -> Path:
    """One line per job in the order of arrival: grey while it waits, coloured by the type of node it sits on."""
    from matplotlib import colormaps

    figure, axes = _axes(f"Who ran when under {name}", "hours", "jobs in the order of arrival")
    palette = colormaps["tab10"]
    kinds: dict[str, Any] = {}
    bars = 0
    for line, job in enumerate(outcome.jobs):
        axes.hlines(line, _hours(job.arrival_s, outcome), _hours(job.finished_s, outcome), color="#dddddd", lw=0.6)
        bars += len(job.segments)
        if bars > MOST_BARS:
            break
        for kind, spans in _by_kind(job.segments, outcome).items():
            color = kinds.setdefault(kind, palette(len(kinds) % 10))
            axes.broken_barh(spans, (line - 0.45, 0.9), color=color, lw=0)
    for kind, color in kinds.items():
        axes.plot([], [], color=color, lw=4, label=kind)
    if kinds:
        axes.legend(frameon=False, labelcolor=INK, loc="lower right")
    return _save(figure, path)


def _hours(when_s: float, outcome: Outcome) -> float:
    return (when_s - outcome.began_s) / HOUR_S


def _by_kind(
    segments: Sequence[tuple[float, float, tuple[str, ...]]], outcome: Outcome
) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for begin_s, end_s, seats in segments:
        kind = seats[0].partition("-")[0]
        found.setdefault(kind, []).append((_hours(begin_s, outcome), (end_s - begin_s) / HOUR_S))
    return found
