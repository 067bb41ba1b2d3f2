"""Predicted against measured step times in a picture: ``python -m benchmarks.planning_plot RESULT.json FILE.png``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.regret import measured, ran

WITHIN = 0.15
LOOKS = {
    "single": ("one process", "#4c566a", "s"), "dp": ("replicas", "#2e7d32", "o"), "ddp": ("DDP", "#f57c00", "D"),
    "fsdp": ("FSDP2", "#8e24aa", "^"), "tp": ("tensor", "#c62828", "v"), "pp": ("pipeline", "#1565c0", "P"),
}  # fmt: skip


def look(kind: str) -> tuple[str, str, str]:
    """Name, colour and mark of a kind of plan; products count as what is cut first."""
    first = next((part for part in reversed(kind.split("+")) if part.partition("-")[0] in LOOKS), "single")
    return LOOKS[first.partition("-")[0]]


def draw(settings: dict[str, Any], picture: Path) -> None:
    """All candidates of all settings, chosen plans ringed, and the band of the promised error."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 6), layout="constrained")
    told: set[str] = set()
    for one in settings.values():
        for row in ran(one):
            name, colour, mark = look(row["kind"])
            x, y = row["predicted_s"] * 1e3, measured(row) * 1e3
            axes.scatter(x, y, c=colour, marker=mark, s=26, alpha=0.8, linewidths=0, label="" if name in told else name)
            told.add(name)
            if row["id"] == one["chosen"]:
                axes.scatter(x, y, s=90, facecolors="none", edgecolors="black", linewidths=0.8)
    low, high = axes.get_xlim()[0], max(axes.get_xlim()[1], axes.get_ylim()[1])
    ends = [max(low, 1.0), high]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    below, above = ([end * (1 + sign * WITHIN) for end in ends] for sign in (-1, 1))
    axes.fill_between(ends, below, above, color="black", alpha=0.1)
    axes.set(xscale="log", yscale="log", xlabel="predicted step, ms", ylabel="measured step, ms")
    axes.set_title(f"{len(settings)} settings; ringed: chosen; band: ±{WITHIN:.0%}", fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    kept = json.loads(Path(sys.argv[1]).read_text())["details"]["settings"]
    draw(kept, Path(sys.argv[2]))
