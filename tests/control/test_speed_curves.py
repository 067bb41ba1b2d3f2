"""The devices that plans are made for, and the speed curves that follow from plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.control.plans.gang_hardware import Machine, gang_hardware, hardware_by_type, speed_of
from fairlead.control.plans.speed_curves import SpeedCurves, in_worker_units, planned_curve, scaled_to_measured
from fairlead.control.reconcile.cluster_state import job_state
from fairlead.planning.cost import plan_kind
from fairlead.planning.plan_candidates import shapes
from fairlead.profiling.device_types import known_device
from fairlead.scheduling.curves import SpeedCurve
from tests.control import made
from tests.control.test_gang_plans import HEAVY, known_model, nodes, trained
from tests.planning import made as planning

# ---------------------------------------------------------------- hardware


def test_workers_are_as_fast_as_the_cores_they_get() -> None:
    half = nodes(1, cpu=0.5)[0]
    assert speed_of(half, {}) == 0.5
    assert speed_of(nodes(1, cpu=4.0)[0], {}) == 4.0
    assert speed_of(half, {"cpu": 2.5}) == 2.0  # threads are whole
    found = gang_hardware([half, half], {"memory": 1e9}, Machine())
    assert found is not None
    assert [seat.speed for seat in found.seats] == [0.5, 0.5]
    assert found.devices["cpu"].memory_bytes < 1e9
    assert found.links[0] == found.links[-1]  # one machine


def test_devices_that_nobody_knows_are_not_planned_for() -> None:
    assert gang_hardware(nodes(2, kind="abacus"), {}, Machine()) is None
    assert hardware_by_type(nodes(2, kind="abacus"), {}, Machine()) is None
    cards = gang_hardware(nodes(2, kind="a100"), {}, Machine(shared=False))
    assert cards is not None
    assert cards.links[1].bytes_per_s < cards.links[0].bytes_per_s


MEASURED = {
    "flops_per_s": {"float32": 1e9}, "memory_bytes": 8e9, "memory_bytes_per_s": 5e9, "launch_s": 1e-5, "loop_s": 1e-4,
    "links": {"gloo": {"latency_s": 1e-3, "bytes_per_s": 1e8, "step_s": 1e-3, "message_s": 1e-4, "byte_s": 1e-9}},
}  # fmt: skip


def test_other_machines_are_not_taken_for_the_one_that_was_measured() -> None:
    here, elsewhere = Machine(MEASURED), Machine(MEASURED, shared=False)
    assert here.measured_here and not elsewhere.measured_here
    found, typical = (gang_hardware(nodes(2), {}, machine) for machine in (here, elsewhere))
    assert found is not None and typical is not None
    assert found.devices["cpu"].flops("float32") == 1e9
    assert typical.devices["cpu"].flops_per_s == known_device("cpu").flops_per_s


# ---------------------------------------------------------------- curves


def test_a_curve_is_that_of_plans_which_the_job_would_be_given() -> None:
    job = made.job(max_workers=4)
    free = planned_curve(HEAVY, {}, job, nodes(4), Machine())
    alone = planned_curve(HEAVY, {}, replace(job, facts={"plan": "single"}), nodes(4), Machine())
    assert free is not None and alone is not None
    assert alone.fastest(4) == pytest.approx(alone.fastest(1)) == pytest.approx(free.fastest(1))
    every = {
        plan_kind(shape)
        for size in (2, 3, 4)
        for shape in shapes(HEAVY, planning.hardware(size))
        if shape.workers_used > 1
    }
    banned = planned_curve(HEAVY, {}, job, nodes(4), Machine(), every)
    assert banned is not None and banned.fastest(4) == pytest.approx(free.fastest(1))


def test_a_curve_is_drawn_anew_after_the_machine_was_measured_again_or_a_plan_failed() -> None:
    curves, known, job = SpeedCurves(lambda: 0.0), known_model(planning.model(6)), made.job(max_workers=4)
    drawn = []
    slower = MEASURED | {"flops_per_s": {"float32": 5e8}}
    failed = replace(known, banned={"dp": "failed"})
    for machine, model in ((Machine(MEASURED), known), (Machine(slower), known), (Machine(slower), failed)):
        curves.refresh([(job, model)], nodes(4), machine)
        drawn.append(curves.curve_of(job))
    first, second, third = drawn
    assert first is not None and second is not None and third is not None
    assert second.unit < first.unit and third is not second


def test_a_curve_is_the_planners_until_something_was_measured() -> None:
    job = made.job(max_workers=4)
    curve = planned_curve(HEAVY, {}, job, nodes(4), Machine())
    assert curve is not None
    assert curve.sizes == (1, 2, 3, 4)
    assert curve.fastest(4) > 2 * curve.fastest(1)
    measured = scaled_to_measured(curve, {2: curve.fastest(2) / 3})
    assert measured.fastest(2) == pytest.approx(curve.fastest(2) / 3)
    assert measured.fastest(4) == pytest.approx(curve.fastest(4) / 3)


def test_a_curve_in_the_schedulers_units_is_that_of_one_worker() -> None:
    pace = in_worker_units(SpeedCurve((1, 2), {"cpu": ((100.0, 150.0), (80.0, 120.0))}))
    assert (pace.unit, pace.curve.fastest(1), pace.curve.fastest(2)) == (100.0, 1.0, 1.5)


def test_jobs_of_which_the_same_is_known_share_one_curve() -> None:
    curves, known = SpeedCurves(lambda: 0.0), known_model(HEAVY)
    first, second = made.job(id="a"), made.job(id="b")
    curves.refresh([(first, known), (second, known)], nodes(4), Machine())
    one = curves.curve_of(first)
    assert one is not None
    curves.refresh([(first, known), (second, known)], nodes(4), Machine())
    assert one is curves.curve_of(first) is curves.curve_of(second)
    seen = {"b": 1.1, "a": 1.2}
    others = [replace(known, seen=dict(order), banned=dict(order)) for order in (seen.items(), sorted(seen.items()))]
    twins = [made.job(id="c", demand={"x": 1.0, "cpu": 1.0}), made.job(id="d", demand={"cpu": 1.0, "x": 1.0})]
    curves.refresh([*zip(twins, others, strict=True), (first, known), (second, known)], nodes(4), Machine())
    assert curves._of["c"] == curves._of["d"] != curves._of["a"], "whatever the order in which it was learned"
    faster = replace(second, speeds={1: 10 * one.unit})
    pulled_up = curves.curve_of(faster)
    assert pulled_up is not None
    assert pulled_up.unit == pytest.approx(10 * one.unit, rel=0.1)
    assert curves.curve_of(replace(second, speeds={1: 10.001 * one.unit})) is pulled_up  # no new curve for every report
    curves.refresh([], nodes(4), Machine())
    assert curves.curve_of(first) is None


def test_curves_that_take_too_long_come_before_the_next_round() -> None:
    ticks = iter([0.0, 9.0, 9.0, 9.0, 9.0])
    curves = SpeedCurves(lambda: next(ticks))
    curves.refresh([(made.job(), known_model(HEAVY))], nodes(4), Machine())
    assert curves.curve_of(made.job()) is None


def test_with_a_curve_a_jobs_work_is_counted_in_its_units() -> None:
    pace = in_worker_units(SpeedCurve((1, 2), {"cpu": ((100.0, 150.0), (100.0, 150.0))}))
    state = job_state(trained(10, total=30), (), {}, cooling=False, pace=pace)
    assert (state.curve, state.work_left, state.work_done) == (pace.curve, 12.8, 6.4)
    promised = made.job(finish_by_s=1e9)
    assert job_state(promised, (), {}, cooling=False, pace=pace).curve is None  # how much there is to do is not known
