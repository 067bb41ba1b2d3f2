"""Plans on paper agree with what others measured, and speed curves take no time."""

from __future__ import annotations

from statistics import median

import pytest

from benchmarks.paper import planned, predicted
from benchmarks.published import HELD_OUT, POINTS, Published
from fairlead.planning.curves import mixed_gang_point, speed_curve
from fairlead.planning.naive_rule import naive_plan
from fairlead.profiling.device_types import cluster_of, known_device, known_links

from .made import CPU, FAST, SLOW, hardware, model


def error(point: Published) -> float:
    return abs(point.reached(predicted(point).step_s) / point.value - 1)


@pytest.mark.parametrize("points", [POINTS, HELD_OUT], ids=["adjusted by", "held out"])
def test_predictions_are_near_published_throughputs(points: tuple[Published, ...]) -> None:
    assert len(points) >= 6
    assert median(error(point) for point in points) <= 0.25
    assert max(error(point) for point in points) <= 0.35


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point.name}-{point.devices}")
def test_what_was_run_is_said_to_fit(point: Published) -> None:
    assert predicted(point).fits


@pytest.mark.parametrize("devices", [8, 512])
def test_large_models_are_planned_for_large_clusters(devices: int) -> None:
    found = planned(devices)
    assert set(found) == {"GPT-2 1.5B", "13B"}
    assert all(one.fits and one.plan.workers_used <= devices for one in found.values())
    assert found["13B"].plan.sharded or found["13B"].plan.tensor * found["13B"].plan.pipeline > 1  # 206 GB of state


def test_a_speed_curve_never_falls_and_knows_what_lies_apart() -> None:
    curve = speed_curve(model(6, flops=5e7), {"cpu": CPU}, (FAST, SLOW), [1, 2, 4])
    near = [point.samples_per_s for point in curve if point.level == 0]
    far = [point.samples_per_s for point in curve if point.level == 1]
    assert near == sorted(near) and far == sorted(far) and all(a >= b for a, b in zip(near, far, strict=True))
    assert near[0] > 0 and all(point.plan is not None for point in curve)
    kinds = {name: known_device(name) for name in ("a100", "t4")}
    both = speed_curve(model(6, flops=5e9, batch=256), kinds, known_links("a100"), [1, 8])
    best = {(point.devices[0], point.level): point.samples_per_s for point in both}
    assert best[("a100", 8), 0] > best[("t4", 8), 0] > 0


def test_a_gang_of_unlike_devices_has_a_speed() -> None:
    alone, together = cluster_of([(1, 1, "a100")]), cluster_of([(1, 1, "a100"), (1, 1, "v100")])
    heavy = model(6, flops=5e10, batch=256)
    assert mixed_gang_point(heavy, together).devices == (("a100", 1), ("v100", 1))
    assert mixed_gang_point(heavy, together).samples_per_s > mixed_gang_point(heavy, alone).samples_per_s


def test_the_naive_rule_only_looks_at_sizes() -> None:
    few = model(8, parameters=1_000_000, samples=100, sample_bytes=100.0)
    many = model(8, parameters=100, samples=10**6, sample_bytes=100.0)
    assert naive_plan(many, hardware(4)).id == "ddp" and naive_plan(many, hardware(1)).id == "single"
    assert naive_plan(few, hardware(4)).pipeline == 4
    alike = model(8, parameters=3_000, samples=1000, sample_bytes=100.0)
    assert (naive_plan(alike, hardware(4)).data, naive_plan(alike, hardware(4)).pipeline) == (2, 2)
