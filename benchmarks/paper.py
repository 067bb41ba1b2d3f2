"""Scaling on paper: plans for GPT-2 1.5B and a 13B transformer on 8 to 512 A100s, beside what others published."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from benchmarks.published import HELD_OUT, POINTS, Published
from benchmarks.reporter import Bench, main
from fairlead.planning.cost import Estimate, estimate
from fairlead.planning.search import best_plan
from fairlead.planning.topology import Topology
from fairlead.planning.transformer import Transformer
from fairlead.profiling.device_types import cluster_of

MODELS = {"GPT-2 1.5B": Transformer(48, 1600, 25, sequence=1024, vocabulary=50257), "13B": Transformer(40, 5120, 40)}
BATCH = 512
PER_NODE = 8
CAVEAT = """Simulated: nothing was run on these devices by us. The part of the peak that matrix products reach was set
from published rates of such products, and adjusted once with the first points in view; the others came later."""


def predicted(point: Published) -> Estimate:
    """What the cost model says about a published run, spread as it was there."""
    profile = point.profile()
    nodes = max(1, point.devices // PER_NODE)
    ground = Topology(cluster_of([(nodes, point.devices // nodes, point.device)]))
    return estimate(profile, ground, point.plan(profile))


def planned(devices: int) -> dict[str, Estimate]:
    """The planner's own plan for each model on so many A100s."""
    ground = cluster_of([(devices // PER_NODE, PER_NODE, "a100")])
    found = {name: best_plan(model.profile(BATCH), ground) for name, model in MODELS.items()}
    return {name: one for name, one in found.items() if one is not None}


def run(bench: Bench) -> None:
    """Plans on paper, nothing runs: throughput per device, and the time the planner needs for all of them."""
    begun_s = time.process_time()
    for devices in (8, 16, 32, 64, 128, 256, 512):
        for name, one in planned(devices).items():
            flops = MODELS[name].training_flops(BATCH, recompute=False) / one.step_s / devices / 1e12
            bench.add(f"{name} on {devices} A100: {one.plan.id}", flops, "TFLOP/s per device")
    bench.add("all plans", time.process_time() - begun_s, "cpu s", target="< 5")
    _compare(bench, POINTS, "published points")
    _compare(bench, HELD_OUT, "published points that nothing was set by")
    for source in dict.fromkeys(point.source for point in (*POINTS, *HELD_OUT)):
        bench.note(source)
    bench.note(CAVEAT)


def _compare(bench: Bench, points: Sequence[Published], what: str) -> None:
    errors = []
    for point in points:
        value = point.reached(predicted(point).step_s)
        errors.append(abs(value / point.value - 1))
        bench.add(f"{point.name}, {point.devices} {point.device}", value, f"{point.unit} per device", peer="published",
                  peer_value=point.value)  # fmt: skip
    bench.add(f"median error over {len(errors)} {what}", 100 * median(errors), "%", target="<= 25")


if __name__ == "__main__":
    main("paper", run)
