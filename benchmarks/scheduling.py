"""Policies on published traces, in our simulator: what others reach there, what we reach, and what decisions cost.

``python -m benchmarks.scheduling`` fills the table of what must hold; yardsticks that were published are run as well,
to show that the simulator reproduces them. What we may know of a job's length is declared where the published policies
know it too, and learned where they do not; rows that say ``declared`` or ``learned`` are of the other setting and have
no targets. The traces are looked for in the folder that FAIRLEAD_TRACES names. For work on a policy: FAIRLEAD_POLICY
puts another one in our place, FAIRLEAD_CASES takes only cases whose names contain this.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.reporter import Bench, main
from fairlead.errors import FairleadError
from fairlead.scheduling.metrics import jain
from fairlead.simulation.clusters import cluster
from fairlead.simulation.engine import Settings
from fairlead.simulation.generated_workloads import many_days, multi_tenant, one_failure
from fairlead.simulation.outcome import Outcome, Window
from fairlead.simulation.runs import run as simulated
from fairlead.simulation.trace_reader import read_trace

OURS = os.environ.get("FAIRLEAD_POLICY", "fairlead")
CHOSEN = os.environ.get("FAIRLEAD_CASES", "")
HOUR_S = 3600.0
LEAST_FAIR = 10  # windows of a run that the file tells of: all of them would be megabytes


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a run, what is promised for it, and the best that anybody has published."""

    name: str
    unit: str = "s"
    per: float = 1.0  # of the unit
    target: str | None = None
    published: float | None = None
    by: str = "best published"


@dataclass(frozen=True, slots=True)
class Case:
    """A trace on a cluster: our figures against the best ones, and yardsticks against their own published ones."""

    name: str
    file: str  # a pattern below the folder of traces
    figures: Sequence[Figure]
    cluster: str | None = None
    declared: bool = True
    yardsticks: Sequence[tuple[str, Sequence[Figure]]] = ()
    slow: bool = False
    once: bool = False  # too dear for the other setting and the live path


def _times(jct: float, makespan: float, *, hours: bool = True) -> tuple[Figure, Figure]:
    unit, per = ("h", HOUR_S) if hours else ("s", 1.0)
    return (
        Figure("avg_jct_s", unit, per, published=jct, by="published"),
        Figure("makespan_s", unit, per, published=makespan, by="published"),
    )


def _fair(rho: float, unfair: float) -> tuple[Figure, Figure]:
    return (
        Figure("worst_rho", "", published=rho, by="published"),
        Figure("unfair_fraction", "", published=unfair, by="published"),
    )


def _sia(workload: str, target: str | None = None, published: tuple[float, ...] = ()) -> Case:
    """One of Sia's workloads, on its three types of GPUs; the yardstick knows the same profiles as we do."""
    names = ("avg_jct_s", "p99_jct_s", "makespan_s")
    best = dict(zip(names, published, strict=False))
    ours = tuple(Figure(name, "h", HOUR_S, target if name == names[0] else None, best.get(name)) for name in names)
    theirs = tuple(Figure(name, "h", HOUR_S, published=best.get(name), by="published") for name in names)
    file = f"sia/workloads/{workload}.csv"
    return Case(f"sia {workload}", file, ours, declared=False, yardsticks=(("sia", theirs),))


CASES = (
    Case(
        "shockwave 120", "shockwave/120_*.trace",
        (
            Figure("makespan_s", target="<= 22200", published=23_399),
            Figure("avg_jct_s", target="<= 8000", published=9_655),
            Figure("worst_rho", "", target="<= 1.5", published=1.50),
            Figure("unfair_fraction", "", target="<= 0.01", published=0.042),
        ),
        yardsticks=(
            ("gavel-maxmin-blind", (*_times(11_274, 33_208, hours=False), *_fair(2.95, 0.25))),
            ("gavel-makespan", _times(19_807, 24_205, hours=False)),
            ("themis", _times(11_403, 32_328, hours=False)),
        ),
    ),
    Case(
        "gavel 96", "gavel/max_min_fairness.trace",
        (
            Figure("avg_jct_s", "h", HOUR_S, "<= 3.8", 3.99), Figure("makespan_s", "h", HOUR_S, "<= 17.8", 17.09),
            Figure("worst_rho", "", target="<= 1.75", published=1.98),
            Figure("unfair_fraction", "", target="<= 0.11", published=0.23),
        ),
        cluster="8xv100,16xp100,24xk80",
        yardsticks=(
            ("gavel-maxmin", (*_times(4.06, 17.76), *_fair(2.42, 0.26))),
            ("gavel-ftf", (*_times(4.17, 18.05), *_fair(1.98, 0.23))),
            ("gavel-makespan", _times(6.38, 17.09)),
        ),
    ),
    Case(
        "gavel 400", "gavel/gavel_gen_400j_*.trace",
        (
            Figure("avg_jct_s", "h", HOUR_S, "<= 9.2", 11.91), Figure("makespan_s", "h", HOUR_S, "<= 79", 79.0),
            Figure("worst_rho", "", target="<= 1.29", published=1.29),
            Figure("unfair_fraction", "", target="<= 0.005", published=0.038),
        ),
        cluster="24xv100,24xp100,24xk80",
        yardsticks=(
            ("gavel-maxmin", (*_times(14.97, 83.59), *_fair(3.07, 0.048))),
            ("gavel-ftf", (*_times(11.91, 79.02), *_fair(1.29, 0.038))),
        ),
        slow=True,
    ),
    Case(
        "pollux 6", "pollux/workloads/workload-6.csv", (Figure("avg_jct_s", target="<= 2300", published=2_446),),
        declared=False,
        yardsticks=(
            ("tiresias", (Figure("avg_jct_s", published=3_469.69, by="published"),)),
            ("sia", (Figure("avg_jct_s"),)),
        ),
    ),
    Case("pollux 1", "pollux/workloads/workload-1.csv", (Figure("avg_jct_s", target="<= 1900"),), declared=False),
    Case(
        "elasticflow 195", "elasticflow/elasticVpollux_e.csv",
        (Figure("deadlines_met", "", target=">= 0.8", published=0.728),),
        yardsticks=(
            ("elasticflow", (Figure("deadlines_met", "", published=0.728, by="published"),)),
            ("edf", (Figure("deadlines_met", "", published=0.118, by="published"),)),
            ("edf-admission", (Figure("deadlines_met", "", published=0.410, by="published"),)),
            ("tiresias", (Figure("deadlines_met", "", published=0.287, by="published"),)),
        ),
    ),
    Case(
        "philly 82,247", "pollux/traces/philly.csv",
        (
            Figure("jain", ""), Figure("least_jain", "", target=">= 0.97"),
            Figure("least_served", "", target=">= 0.95"), Figure("cpu_s", target="<= 900"),
        ),
        slow=True,
        once=True,
    ),
    _sia("philly-1", "<= 0.5", (0.542, 7.84, 15.53)),
    *(_sia(name) for name in ("philly-2", "philly-3", "philly-4", *(f"saturn-{at}" for at in range(1, 6)))),
)  # fmt: skip


MANY_JOBS = 10_000
MANY_DAYS, MANY_ROUND_S = 22, 300.0
"""So many days of ten tenants have a little more than so many jobs; decisions are made every five minutes there."""

TENANTS = {  # published fairness index and share of deadlines met, by number of tenants
    2: (0.95, 0.992),
    10: (0.87, 0.917),
}


def _tenants(bench: Bench, count: int) -> None:
    """Many tenants with deadlines and one node failure; DRF with EDF is what the load was set by."""
    index, met = TENANTS[count]
    ours = (
        Figure("jain", "", target=">= 0.98" if count == 10 else None, published=index),
        Figure("deadlines_met", "", target=">= 0.99" if count == 10 else None, published=met),
    )
    drf = tuple(Figure(figure.name, "", published=figure.published, by="published") for figure in ours)
    trace, name = multi_tenant(count), f"{count} tenants"
    for policy, figures in ((OURS, ours), ("drf", drf)):
        settings = Settings(outages=one_failure())
        _add(bench, name, policy, figures, partial(simulated, trace, policy, trace.nodes, settings))
    for label, policy, declared in () if bench.quick else _others(True):
        settings = Settings(outages=one_failure(), declared=declared)
        _add(bench, name, label, _unpromised(ours), partial(simulated, trace, policy, trace.nodes, settings))


def _others(declared: bool) -> list[tuple[str, str, bool]]:
    """(name, policy, whether work is declared): ours when it may know what it did not, or not what it did."""
    return [(f"{OURS} {'learned' if declared else 'declared'}", OURS, not declared)]


def _unpromised(figures: Sequence[Figure]) -> tuple[Figure, ...]:
    """The same figures where nothing is promised."""
    return tuple(replace(figure, target=None) for figure in figures)


def _many(bench: Bench) -> None:
    """How long the simulator takes over many jobs, decisions included."""
    trace = many_days(2 if bench.quick else MANY_DAYS)
    settings = Settings(round_s=MANY_ROUND_S)
    figures = (Figure("cpu_s", target="<= 120"), Figure("jain", ""), Figure("deadlines_met", ""))
    _add(bench, f"{len(trace.jobs):,} jobs", OURS, figures, partial(simulated, trace, OURS, trace.nodes, settings))


def run(bench: Bench) -> None:
    """Policies on published traces, in our simulator."""
    for count in TENANTS:
        if CHOSEN in f"{count} tenants":
            _tenants(bench, count)
    if CHOSEN in "10,000 jobs":
        _many(bench)
    folder = Path(os.environ.get("FAIRLEAD_TRACES", "traces"))
    for case in CASES:
        found = sorted(folder.glob(case.file))
        if CHOSEN not in case.name:
            continue
        if not found:
            bench.note(f"{case.name}: no trace {case.file} in FAIRLEAD_TRACES")
        elif case.slow and bench.quick:
            bench.note(f"{case.name}: left out of a quick run")
        else:
            _case(bench, case, found[0])


def _case(bench: Bench, case: Case, path: Path) -> None:
    trace = read_trace(path)
    nodes = cluster(case.cluster) if case.cluster else tuple(trace.nodes)
    settings = Settings(declared=case.declared)
    _add(bench, case.name, OURS, case.figures, partial(simulated, trace, OURS, nodes, settings))
    if bench.quick:
        return
    if case.once:
        bench.note(f"{case.name}: run once, with declared work; neither learned nor live, which take far longer")
    for label, policy, declared in () if case.once else _others(case.declared):
        simulate = partial(simulated, trace, policy, nodes, Settings(declared=declared))
        _add(bench, case.name, label, _unpromised(case.figures), simulate)
    for policy, figures in case.yardsticks:
        _add(bench, case.name, policy, figures, partial(simulated, trace, policy, nodes))


def _add(bench: Bench, case: str, policy: str, figures: Sequence[Figure], simulate: Callable[..., Outcome]) -> None:
    begun_s = time.process_time()
    try:
        with bench.step(f"{case}: {policy}"):
            outcome = simulate(progress=_Progress())
    except FairleadError as error:
        bench.note(f"{case}: {policy}: {error}")
        outcome = None
    values = {} if outcome is None else _values(outcome, time.process_time() - begun_s)
    for figure in figures:
        value = values.get(figure.name)
        bench.add(
            f"{case} {policy} {figure.name.removesuffix('_s')}", None if value is None else value / figure.per,
            figure.unit, peer=figure.by if figure.published is not None else None, peer_value=figure.published,
            target=figure.target,
        )  # fmt: skip
    if values:
        bench.add(f"{case} {policy} decide cpu p99", (values["decide_cpu_s_p99"] or 0.0) * 1e3, "ms")
    if outcome is not None and len({job.tenant for job in outcome.jobs}) > 1:
        told = sorted(map(_window, outcome.windows), key=lambda window: window["jain"])
        bench.details[f"{case} {policy}, its least fair windows"] = told[:LEAST_FAIR]


class _Progress:
    """Ten times during a run, how far it is: some take a quarter of an hour."""

    def __init__(self) -> None:
        self._said = 0

    def __call__(self, done: int, jobs: int, now_s: float) -> None:
        tenths = 10 * done // max(jobs, 1)
        if jobs >= MANY_JOBS and tenths > self._said:
            self._said = tenths
            print(f" {10 * tenths}%", end="", file=sys.stderr, flush=True)


def _window(window: Window) -> dict[str, Any]:
    """How tenants fared in a stretch of time, for the file."""
    ratios, small = window.ratios(), window.ratios(large=False)
    return {
        "begins_s": window.begins_s,
        "ends_s": window.ends_s,
        "jain": jain(ratios.values()),
        "served_of_due": {name: round(ratio, 4) for name, ratio in ratios.items()},
        "without_large_gangs": {name: round(ratio, 4) for name, ratio in small.items()},
        "due_device_s": {name: round(due) for name, due in window.due.items()},
    }


def _values(outcome: Outcome, cpu_s: float) -> dict[str, float | None]:
    """The figures, and some that only a run of many tenants needs: of the worst window, and of the worst tenant."""
    values = {name: None if value is None else float(value) for name, value in outcome.figures().items()}
    served = [ratio for window in outcome.windows for ratio in window.ratios(large=False).values()]
    index = min((jain(window.ratios().values()) for window in outcome.windows), default=None)
    return values | {"cpu_s": cpu_s, "least_jain": index, "least_served": min(served, default=None)}


if __name__ == "__main__":
    main("scheduling", run, peers=["scipy", "clarabel"])
