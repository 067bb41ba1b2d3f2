"""Traces that no dial was ever set by: the published ones drawn again, ours against the published policies on each.

``python -m benchmarks.unseen`` draws each trace again under several seeds and runs us and the strongest yardsticks of
that trace on every draw. A row is the median over the draws; its peer is the best yardstick for that figure, draw by
draw, so that one has to win against a different policy in each figure at once. Many tenants are not drawn from a trace
but made: a day of jobs with deadlines and one node failure, each under a seed of its own. There the worst seed counts
as well as the median, and the figures of every seed are in the file.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reporter import Bench, main
from fairlead.cluster import Node
from fairlead.simulation.clusters import cluster
from fairlead.simulation.engine import Settings
from fairlead.simulation.generated_workloads import multi_tenant, one_failure
from fairlead.simulation.outcome import Outcome
from fairlead.simulation.resampled_traces import resampled
from fairlead.simulation.runs import run as simulated
from fairlead.simulation.trace import Trace
from fairlead.simulation.trace_reader import read_trace

OURS = os.environ.get("FAIRLEAD_POLICY", "fairlead")
CHOSEN = os.environ.get("FAIRLEAD_CASES", "")
HOUR_S = 3600.0
SCALE = {"avg_jct_s": (HOUR_S, "h"), "makespan_s": (HOUR_S, "h")}


@dataclass(frozen=True, slots=True)
class Kind:
    """A family of traces, who is strong on it, and which figures count there."""

    name: str
    file: str
    yardsticks: Sequence[str]
    figures: Sequence[str]
    cluster: str | None = None
    declared: bool = True


FAIR = ("avg_jct_s", "makespan_s", "worst_rho", "unfair_fraction")
KINDS = (
    Kind("shockwave", "shockwave/120_*.trace", ("gavel-maxmin-blind", "themis", "srtf"), FAIR),
    Kind("gavel 96", "gavel/max_min_fairness.trace", ("gavel-maxmin", "gavel-ftf"), FAIR, "8xv100,16xp100,24xk80"),
    Kind("pollux 6", "pollux/workloads/workload-6.csv", ("tiresias", "sia"), ("avg_jct_s",), declared=False),
    Kind("pollux 1", "pollux/workloads/workload-1.csv", ("tiresias", "sia"), ("avg_jct_s",), declared=False),
    Kind("elasticflow", "elasticflow/elasticVpollux_e.csv", ("elasticflow", "edf-admission"), ("deadlines_met",)),
)


TENANTS = 10
TENANT_FIGURES = {"jain": "FI", "deadlines_met": "SSR"}
"""The sources' names: index of fairness between tenants, and the share of promises that were kept."""


def run(bench: Bench) -> None:
    """Published traces drawn again, and many tenants: ours against the best yardstick of each draw."""
    folder = Path(os.environ.get("FAIRLEAD_TRACES", "traces"))
    seeds = range(1, 3 if bench.quick else 6)
    for kind in KINDS:
        found = sorted(folder.glob(kind.file))
        if CHOSEN not in kind.name:
            continue
        if not found:
            bench.note(f"{kind.name}: no trace {kind.file} in FAIRLEAD_TRACES")
        else:
            _kind(bench, kind, found[0], seeds)
    if CHOSEN in f"{TENANTS} tenants":
        _tenants(bench, seeds)


def _tenants(bench: Bench, seeds: Sequence[int]) -> None:
    """Days of many tenants that the load was not set by: those of other seeds than the table's."""
    found: dict[str, list[dict[str, float]]] = {OURS: [], "drf": []}
    for seed in seeds:
        trace = multi_tenant(TENANTS, seed)
        with bench.step(f"{TENANTS} tenants, seed {seed}"):
            for policy, figures in found.items():
                values = simulated(trace, policy, trace.nodes, Settings(outages=one_failure(seed))).figures()
                figures.append({name: float(values[name] or 0.0) for name in TENANT_FIGURES})
    bench.details[f"{TENANTS} tenants"] = {
        policy: [{"seed": seed, **values} for seed, values in zip(seeds, figures, strict=True)]
        for policy, figures in found.items()
    }
    for name, title in TENANT_FIGURES.items():
        mine, theirs = ([one[name] for one in figures] for figures in found.values())
        wins = sum(our > their for our, their in zip(mine, theirs, strict=True))
        text = f"{TENANTS} tenants {title}"
        bench.add(f"{text}, better in {wins} of {len(mine)}", statistics.median(mine), "", peer="drf",
                  peer_value=statistics.median(theirs))  # fmt: skip
        bench.add(f"{text}, worst seed", min(mine), "", peer="drf", peer_value=min(theirs))


def _kind(bench: Bench, kind: Kind, path: Path, seeds: Sequence[int]) -> None:
    trace = read_trace(path)
    nodes = cluster(kind.cluster) if kind.cluster else tuple(trace.nodes)
    ours: list[dict[str, float]] = []
    best: list[dict[str, float]] = []
    for seed in seeds:
        drawn = resampled(trace, seed)
        with bench.step(f"{kind.name}, draw {seed}"):
            ours.append(_figures(kind, _simulated(drawn, OURS, nodes, kind)))
            peers = [_figures(kind, _simulated(drawn, name, nodes, kind)) for name in kind.yardsticks]
        best.append({name: _best(name, (peer[name] for peer in peers)) for name in kind.figures})
    for name in kind.figures:
        per, unit = SCALE.get(name, (1.0, ""))
        mine, theirs = ([one[name] / per for one in group] for group in (ours, best))
        wins = sum(_best(name, pair) == pair[0] for pair in zip(mine, theirs, strict=True))
        text = f"{kind.name} {name.removesuffix('_s')}, better in {wins} of {len(mine)}"
        bench.add(text, statistics.median(mine), unit, peer="best yardstick", peer_value=statistics.median(theirs))


def _best(figure: str, values: Iterable[float]) -> float:
    return max(values) if figure == "deadlines_met" else min(values)


def _simulated(trace: Trace, policy: str, nodes: Sequence[Node], kind: Kind) -> Outcome:
    return simulated(trace, policy, nodes, Settings(declared=kind.declared or policy != OURS))


def _figures(kind: Kind, outcome: Outcome) -> dict[str, float]:
    values = outcome.figures()
    return {name: float(values[name] or 0.0) for name in kind.figures}


if __name__ == "__main__":
    main("unseen", run, peers=["scipy", "clarabel"])
