"""A gang runs the fastest plan, unless it is hardly faster than replicas, was banned, or another was asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import fairlead
from fairlead.errors import InvalidSpec
from fairlead.planning.cost import estimate, fit_correction, plan_kind
from fairlead.planning.model_coarsening import coarsened
from fairlead.planning.model_corrections import (
    MOST,
    PREDICTABLE,
    corrected,
    correction_factors,
    is_predictable,
    with_ratio,
)
from fairlead.planning.plan_choice import (
    PLAN_FAMILIES,
    choose_plan,
    plan_family,
    plan_without_profile,
    replica_plan,
    why_unsupported,
)
from fairlead.planning.profiles import ALL_KINDS, Calibration, Hardware, Layer, ModelProfile
from fairlead.planning.search import candidates
from fairlead.planning.topology import Topology
from tests.planning import made

CALIBRATED = Calibration(device="cpu", fixed_s=1e-3, sample_s=1e-3, optimizer_s=1e-3)


@settings(deadline=None, max_examples=50)
@given(made.models(), made.machines())
def test_a_plan_that_is_chosen_fits_if_any_does_and_is_never_much_slower_than_replicas(
    model: ModelProfile, hardware: Hardware
) -> None:
    found = choose_plan(model, hardware)
    usual = estimate(model, Topology(hardware), replica_plan(len(hardware.seats)))
    assert found.reason
    assert found.estimate.fits or not any(one.fits for one in candidates(model, hardware, on_paper=False))
    if usual.fits:
        assert found.estimate.adjusted_step_s <= usual.adjusted_step_s * (1 + 1e-9)
    assert found.plan.workers_used <= len(hardware.seats)


@settings(deadline=None, max_examples=50)
@given(made.models(), made.machines(), st.sampled_from(PLAN_FAMILIES))
def test_what_is_asked_for_is_run_or_refused(model: ModelProfile, hardware: Hardware, wanted: str) -> None:
    found = choose_plan(model, hardware, wanted=wanted)
    if wanted == "auto":
        assert not found.refused
        return
    alone = len(hardware.seats) == 1
    assert plan_family(found.plan) == wanted or alone or found.refused
    assert "asked for" in found.reason
    assert found.estimate.fits or "predicted to need" in found.reason or found.refused


TIGHT = replace(made.CPU, memory_bytes=1e8)
LARGE = made.model(8, parameters=2_000_000)  # 256 MB with gradients and two moments


def test_a_plan_that_does_not_fit_gives_way_to_one_that_does() -> None:
    found = choose_plan(LARGE, made.hardware(4, device=TIGHT))
    assert found.estimate.fits and plan_family(found.plan) not in ("dp", "ddp", "single")


@pytest.mark.parametrize("wanted", ["dp", "ddp", "single"])
def test_a_plan_that_was_asked_for_is_tried_though_it_may_not_fit_and_says_so(wanted: str) -> None:
    found = choose_plan(LARGE, made.hardware(4, device=TIGHT), wanted=wanted)
    assert (plan_family(found.plan), found.refused) == (wanted, "")
    assert "MB of memory on a worker, of 92.0 MB that it may use" in found.reason


def test_a_plan_by_name_that_the_model_cannot_run_is_refused_with_the_reason() -> None:
    piece = made.model(1, limits=("it cannot be traced",))
    found = choose_plan(piece, made.hardware(2), wanted="pp")
    assert "one piece" in found.refused and "cannot be traced" in found.refused
    assert why_unsupported(piece, "pp") == found.refused
    whole = replace(made.model(4), tensor_limit=1)
    assert "shared by workers" in choose_plan(whole, made.hardware(2), wanted="tp").refused
    assert "only whole copies" in why_unsupported(replace(made.model(4), copies_only=True), "pp")
    assert [why_unsupported(made.model(4), wanted) for wanted in PLAN_FAMILIES] == [""] * len(PLAN_FAMILIES)


@pytest.mark.parametrize("wanted", ["auto", "dp", "ddp", "single", "fsdp"])
def test_where_nothing_fits_the_reason_says_by_how_much(wanted: str) -> None:
    found = choose_plan(LARGE, made.hardware(1, device=TIGHT), wanted=wanted)
    assert not found.estimate.fits
    assert "fits in no way" in found.reason and "of 92.0 MB that it may use" in found.reason


def test_what_fits_but_has_failed_is_not_said_not_to_fit() -> None:
    hardware = made.hardware(4, device=TIGHT)
    kinds = {plan_kind(one.plan) for one in candidates(LARGE, hardware, on_paper=False) if one.fits}
    found = choose_plan(LARGE, hardware, banned=kinds)
    assert "has failed" in found.reason and "fits in no way" not in found.reason


def test_a_kind_of_plan_that_failed_is_not_chosen_again() -> None:
    model, hardware = made.model(), made.hardware(2, link=made.SLOW)
    first = choose_plan(model, hardware)
    assert plan_family(first.plan) not in ("dp", "single")
    again = choose_plan(model, hardware, banned={plan_kind(first.plan)})
    assert plan_kind(again.plan) != plan_kind(first.plan)


def test_replicas_stay_where_another_plan_is_hardly_faster() -> None:
    model, hardware = made.model(), made.hardware(2, link=made.SLOW)
    assert plan_family(choose_plan(model, hardware).plan) != "dp"
    kept = choose_plan(model, hardware, margin=1e6)
    assert kept.plan == replica_plan(2)
    assert "faster" in kept.reason


def test_a_model_that_is_one_piece_says_why_it_gets_replicas() -> None:
    model = made.model(1, limits=("it cannot be traced",))
    assert "cannot be traced" in choose_plan(model, made.hardware(2)).reason


@pytest.mark.parametrize("wanted", PLAN_FAMILIES)
def test_without_a_profile_there_is_a_plan_for_every_wish(wanted: str) -> None:
    assert plan_without_profile(wanted, 1).workers_used == 1
    found = plan_without_profile(wanted, 4)
    assert plan_family(found) == (wanted if wanted in ("single", "ddp", "fsdp") else "dp")


# ---------------------------------------------------------------- learning


def test_a_slow_machine_slows_down_all_plans_alike() -> None:
    model, hardware = made.model(calibration=CALIBRATED), made.hardware(2)
    known = corrected(model, hardware, {"dp": 3.0})
    assert known.calibration is not None
    assert known.calibration.factors == {ALL_KINDS: 3.0, "dp": 1.0}
    before, after = (estimate(m, Topology(hardware), replica_plan(2)).step_s for m in (model, known))
    assert 1.5 * before < after <= 3 * before * (1 + 1e-9)  # workers are slower, wires are not


def test_what_was_measured_is_predicted_from_then_on() -> None:
    model, hardware = made.model(calibration=CALIBRATED), made.hardware(2)
    plan = replica_plan(2)
    measured_s = 2.5 * estimate(model, Topology(hardware), plan).step_s
    known = corrected(
        model, hardware, with_ratio({}, "dp", fit_correction(model, Topology(hardware), plan, measured_s))
    )
    assert estimate(known, Topology(hardware), plan).step_s == pytest.approx(measured_s, rel=0.01)


def test_a_kind_that_turns_out_slower_than_others_loses_to_them() -> None:
    model, hardware = made.model(calibration=CALIBRATED), made.hardware(2, link=made.SLOW)
    first = choose_plan(model, hardware)
    learned = corrected(model, hardware, {"dp": 1.0, plan_kind(first.plan): 40.0})
    assert plan_kind(choose_plan(learned, hardware).plan) != plan_kind(first.plan)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=20))
def test_no_accident_rules_what_is_learned(ratios: list[float]) -> None:
    seen: dict[str, float] = {}
    for ratio in ratios:
        seen = with_ratio(seen, "dp", ratio)
    assert 1 / MOST <= seen["dp"] <= MOST
    model, hardware = made.model(calibration=CALIBRATED), made.hardware(2)
    assert correction_factors(model, hardware, seen)[ALL_KINDS] == pytest.approx(seen["dp"])


def test_a_model_that_was_never_timed_is_taken_as_it_is() -> None:
    model, hardware = made.model(), made.hardware(2)
    assert corrected(model, hardware, {"dp": 5.0}) == model
    assert correction_factors(model, hardware, {}) == {}


def test_a_training_names_only_plans_that_there_are() -> None:
    column = np.zeros((4, 2))
    with pytest.raises(InvalidSpec, match="plan"):
        fairlead.Training(model=lambda: None, data=(column, column), batch_size=1, epochs=1, plan="magic")


def test_a_prediction_that_is_off_by_far_is_not_planned_by() -> None:
    assert is_predictable({})
    assert is_predictable({"dp": 3.0, "single": 0.5})
    assert is_predictable({"dp": PREDICTABLE, "single": 1 / PREDICTABLE}), "the bound itself is trusted"
    assert not is_predictable({"dp": 1.01 * PREDICTABLE}) and not is_predictable({"dp": 0.99 / PREDICTABLE})
    assert is_predictable({"dp": 12.0}) and not is_predictable({"dp": 18.0})
    assert not is_predictable({"dp": 1.0, "single": 0.05})


def test_computing_measured_by_itself_says_how_slow_the_workers_are() -> None:
    model, hardware = made.model(calibration=CALIBRATED), made.hardware(2)
    seen = {ALL_KINDS: 2.0, "dp": 18.0}  # exchanges take ages here, computing does not
    assert is_predictable(seen)
    assert correction_factors(model, hardware, seen) == {ALL_KINDS: 2.0, "dp": 9.0}
    assert plan_kind(choose_plan(corrected(model, hardware, seen), hardware).plan) != "dp"


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.integers(1, 20))
def test_a_model_in_fewer_pieces_is_the_same_model(weights: list[int], most: int) -> None:
    layers = tuple(
        Layer(name=f"l{at}", flops=float(weight), parameters=weight, output_bytes=float(at))
        for at, weight in enumerate(weights)
    )
    model = ModelProfile(layers=layers, batch_size=8)
    found = coarsened(model, most)
    assert len(found.layers) == min(most, len(layers))
    assert (found.parameters, found.flops) == (model.parameters, model.flops)
    names = [layer.name for layer in model.layers]
    kept = [layer.name for layer in found.layers]
    assert kept == sorted(kept, key=names.index)
    assert kept[0] == "l0"
    assert found.layers[-1].output_bytes == layers[-1].output_bytes
