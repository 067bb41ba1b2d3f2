"""Draws the devices of each tenant and the workers of each job over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairlead.demo.participants import TENANTS

COLORS = {tenant.name: tenant.color for tenant in TENANTS}
INK = "#333333"
KILL = "#b3262e"


def draw(document: dict[str, Any], path: Path) -> None:
    """Write the plot as a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    begin_s = document["shares"][0]["time_s"] if document["shares"] else document["started_s"]
    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(11, 6.6), dpi=130, sharex=True, height_ratios=(3, 2.2), layout="constrained"
    )
    figure.suptitle("Three tenants with weights 3 : 2 : 1 share four nodes", x=0.01, ha="left", color=INK, size=14)
    _shares(above, document, begin_s)
    _gangs(below, document, begin_s)
    for axes in (above, below):
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=0, colors=INK)
    below.set_xlabel("seconds", color=INK)
    figure.savefig(path)
    pyplot.close(figure)


def _shares(axes: Any, document: dict[str, Any], begin_s: float) -> None:
    times = [point["time_s"] - begin_s for point in document["shares"]]
    rows = [[point["devices"].get(tenant.name, 0.0) for point in document["shares"]] for tenant in TENANTS]
    entitled = {line["tenant"]: line["entitlement"] for line in document["tenants"]}
    labels = [f"{tenant.name} (entitled to {entitled[tenant.name]:.0%})" for tenant in TENANTS]
    axes.stackplot(times, rows, labels=labels, colors=[tenant.color for tenant in TENANTS], step="post", lw=0)
    axes.axhline(document["devices"], color=INK, lw=0.8, ls=":")
    axes.set_ylim(0, document["devices"] * 1.25)
    axes.set_yticks(range(document["devices"] + 1))
    axes.set_title("devices held by each tenant", loc="left", color=INK, size=10)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, fontsize=9, labelcolor=INK)
    if document["kill"] is not None:
        _mark_kill(axes, document, begin_s)


def _mark_kill(axes: Any, document: dict[str, Any], begin_s: float) -> None:
    kill = document["kill"]
    at_s, took_s = kill["time_s"] - begin_s, kill["to_next_step_s"]
    again = f"; {kill['job']} next step after {took_s:.2f} s" if took_s is not None else ""
    axes.axvline(at_s, color=KILL, lw=1.4)
    axes.annotate(
        f"{kill['node']} killed{again}", (at_s, document["devices"] * 1.12), xytext=(5, 0),
        textcoords="offset points", color=KILL, size=9, va="center",
    )  # fmt: skip


def _gangs(axes: Any, document: dict[str, Any], begin_s: float) -> None:
    """Draw one lane per job; its thickness is the number of workers."""
    jobs = document["jobs"]
    for lane, job in enumerate(reversed(jobs)):
        color = COLORS[job["tenant"]]
        for generation in job["generations"]:
            if generation["running_s"] is None or generation["ended_s"] is None:
                continue
            start, end = generation["running_s"] - begin_s, generation["ended_s"] - begin_s
            height = 0.16 + 0.16 * generation["workers"]
            axes.barh(lane, end - start, left=start, height=height, color=color, edgecolor="white", lw=0.8)
            if end - start > 2.5:
                middle = (start + end) / 2
                axes.text(middle, lane, generation["workers"], ha="center", va="center", color="white", size=9)
    axes.set_yticks(range(len(jobs)), [job["name"] for job in reversed(jobs)])
    axes.set_ylim(-0.6, len(jobs) - 0.4)
    axes.set_title("workers of each job", loc="left", color=INK, size=10)
    if document["kill"] is not None:
        axes.axvline(document["kill"]["time_s"] - begin_s, color=KILL, lw=1.4)
