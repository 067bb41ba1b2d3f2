"""Speed curves say what gangs are worth to the scheduler, and cost little to draw."""

from __future__ import annotations

from collections import Counter

import pytest

from fairlead.planning import cost, curves, search, stage_assignment
from fairlead.planning.curves import equal_gang, speed_curve
from fairlead.planning.search import best_plan

from .made import CPU, FAST, SLOW, model


def test_more_steps_to_the_same_accuracy_are_not_counted_as_speed() -> None:
    loose = model(4, flops=5e7, parameters=2_000_000, exact=False, copies_only=True)
    points = speed_curve(loose, {"cpu": CPU}, (FAST, SLOW), [1, 2, 4])
    inexact = [point for point in points if point.plan is not None and not point.plan.exact]
    assert inexact
    for point in inexact:
        assert point.plan is not None
        factor = cost.steps_factor(point.plan)
        ((_, size),) = point.devices
        found = best_plan(loose, equal_gang(CPU, (FAST, SLOW), size, point.level, 8), on_paper=False)
        assert found is not None and point.samples_per_s <= loose.batch_size / found.adjusted_step_s * (1 + 1e-9)
        assert factor > 1


@pytest.mark.parametrize("layers", [3, 8])
def test_a_curve_is_what_a_whole_search_of_each_gang_finds(layers: int) -> None:
    links, plain = (FAST, SLOW), model(layers, flops=5e7)
    for point in speed_curve(plain, {"cpu": CPU}, links, [1, 2, 3, 4, 6], per_node=2):
        ((_, size),) = point.devices
        found = best_plan(plain, equal_gang(CPU, links, size, point.level, 2), on_paper=False)
        assert found is not None
        assert point.samples_per_s == pytest.approx(found.samples_per_s, rel=0.02)


def test_a_gang_that_may_not_be_small_can_still_leave_workers_without_work() -> None:
    small = model(2, flops=2e4, parameters=500)
    (point,) = speed_curve(small, {"cpu": CPU}, (FAST,), [6])
    assert point.plan is not None and point.plan.id == "single"


def test_what_was_asked_for_may_be_slower_on_more_workers() -> None:
    heavy = model(4, flops=1e5, parameters=2_000_000)
    points = speed_curve(heavy, {"cpu": CPU}, (SLOW,), [1, 2, 4], wanted="ddp")
    speeds = [point.samples_per_s for point in points]
    assert speeds[0] > speeds[1] > speeds[2] > 0


def test_a_curve_of_a_deep_model_takes_few_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()

    def counted(name: str, function: object) -> object:
        def call(*given: object, **more: object) -> object:
            seen[name] += 1
            return function(*given, **more)  # type: ignore[operator]

        return call

    for module in (search, curves):
        monkeypatch.setattr(module, "estimate", counted("estimates", cost.estimate))
    monkeypatch.setattr(stage_assignment._Pricing, "price", counted("stages", stage_assignment._Pricing.price))
    speed_curve(model(20), {"cpu": CPU}, (FAST, FAST), range(1, 9), per_node=4)
    assert seen["estimates"] < 150 and seen["stages"] < 4000, seen  # 12,000 stages without good bounds
