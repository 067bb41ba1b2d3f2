"""Where gangs sit, and what it brings: distance, neighbours and sleep, each simulated with and without knowing of it.

``python -m benchmarks.placement``: the same seeded workload twice, once with a policy that is told, once with one that
is not; the truth is the same for both. Virtual time throughout.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from benchmarks.reporter import Bench, main
from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.curves import FAR, SpeedCurve
from fairlead.scheduling.market import Market
from fairlead.scheduling.state import ClusterState, JobState, Round
from fairlead.simulation.energy import Energy
from fairlead.simulation.engine import Settings, simulate
from fairlead.simulation.outcome import Outcome
from fairlead.simulation.trace import Clock, Trace, TraceJob
from fairlead.simulation.trace_formats.plain import ScaledJob, amdahl

HOUR_S = 3600.0
TYPE = "v100"
OVER = (0.9, 0.5, 0.3)
"""Speed of a gang over several nodes, racks and zones, relative to one node: it exchanges over ever slower links."""

COMPANY = {("reader", "reader"): 0.35, ("trainer", "reader"): 0.1, ("reader", "trainer"): 0.05}
"""Two jobs that read from the same disks disturb each other; others hardly."""


def cluster(nodes: int = 32) -> list[Node]:
    """Nodes of four devices, four to a rack, half of the racks in each of two zones."""
    return [
        Node(f"n{at:02d}", {DEVICE: 4.0, "cpu": 32.0}, TYPE,
             topology=(f"z{2 * at // nodes}", f"r{at // 4}", f"n{at:02d}"))
        for at in range(nodes)
    ]  # fmt: skip


def workload(count: int, hours: float, seed: int, sizes: tuple[int, ...]) -> Trace:
    """Jobs of these gang sizes that come evenly over so many hours and take half an hour to three."""
    rng = random.Random(seed)
    jobs = []
    for at in range(count):
        size = rng.choice(sizes)
        curve = _curve(size)
        kind = rng.choice(["trainer", "reader"])
        seconds = rng.uniform(0.5, 3.0) * HOUR_S
        jobs.append(
            TraceJob(f"j{at:03d}", rng.uniform(0.0, hours) * HOUR_S, ScaledJob(seconds, curve), size, size,
                     exclusive_s=seconds, facts={"class": kind})
        )  # fmt: skip
    return Trace(f"placement-{seed}", "generated", jobs, 60.0, 30.0, clock=Clock.EVENTS)


_CURVES: dict[int, SpeedCurve] = {}


def _curve(size: int) -> SpeedCurve:
    """1 on one node, or in one rack where no node is large enough."""
    if size not in _CURVES:
        whole = amdahl(size, size, size, 0.05, {TYPE: 1.0}, OVER)
        best = 1.0 if size <= 4 else OVER[0]
        levels = tuple(tuple(speed / best for speed in level) for level in whole.speeds[TYPE])
        _CURVES[size] = SpeedCurve(whole.sizes, {TYPE: levels if size <= 4 else ((0.0,), *levels[1:])})
    return _CURVES[size]


class Blind:
    """Our policy where nobody told it: of distances beyond one node and several, of neighbours."""

    def __init__(self) -> None:
        self._market = Market()
        self._known: dict[int, tuple[SpeedCurve, SpeedCurve]] = {}

    def __call__(self, state: ClusterState) -> Round:
        jobs = [replace(job, curve=self._short(job)) for job in state.jobs]
        return self._market(replace(state, jobs=jobs, colocation=None))

    def _short(self, job: JobState) -> SpeedCurve | None:
        curve = job.curve
        if curve is None:
            return None
        if id(curve) not in self._known:
            levels = {name: some[: FAR + 1] for name, some in curve.speeds.items()}
            self._known[id(curve)] = (curve, SpeedCurve(curve.sizes, levels))
        return self._known[id(curve)][1]


def run(bench: Bench) -> None:
    """Where gangs sit, and what it brings."""
    count = 60 if bench.quick else 150
    _pair(bench, "distance", workload(count, count / 10, 1, (2, 4, 8, 8, 16)), Settings(), "avg_jct_s", Blind)
    shared = workload(2 * count, count / 10, 2, (1, 2, 2))
    _pair(bench, "neighbours", shared, Settings(colocation=COMPANY), "avg_jct_s", Blind)
    light = workload(count, count / 5, 3, (1, 2, 4, 8))
    awake = _play(bench, "energy: awake", light, Settings(), Market())
    rested = _play(bench, "energy: asleep when idle", light, Settings(energy=Energy(600.0, 120.0)), Market())
    for figure, unit, target in (("energy_kwh", "kWh", "ratio <= 0.9"), ("avg_jct_s", "s", "ratio <= 1.05")):
        bench.add(f"energy {figure.removesuffix('_s')}", _value(rested, figure), unit, peer="always awake",
                  peer_value=_value(awake, figure), target=target)  # fmt: skip


def _pair(bench: Bench, name: str, trace: Trace, settings: Settings, figure: str, blind: Callable[[], Blind]) -> None:
    told = _play(bench, f"{name}: told", trace, settings, Market())
    untold = _play(bench, f"{name}: not told", trace, settings, blind())
    for which in (figure, "makespan_s"):
        bench.add(f"{name} {which.removesuffix('_s')}", _value(told, which), "s", peer="not told",
                  peer_value=_value(untold, which), target="ratio <= 1.0" if which == figure else None)  # fmt: skip
    bench.add(f"{name} restarts per job", _value(told, "restarts_per_job"), "", peer="not told",
              peer_value=_value(untold, "restarts_per_job"))  # fmt: skip


def _play(
    bench: Bench, name: str, trace: Trace, settings: Settings, policy: Callable[[ClusterState], Round]
) -> Outcome:
    with bench.step(name):
        return simulate(trace, cluster(), policy, settings)


def _value(outcome: Outcome, figure: str) -> float:
    return float(outcome.figures()[figure] or 0.0)


if __name__ == "__main__":
    main("placement", run)
