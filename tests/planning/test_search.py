"""The search never proposes what cannot run, repeats itself, and gets no worse when the hardware gets better."""

from __future__ import annotations

from itertools import product
from math import inf

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead import wire
from fairlead.planning.batch_shares import balanced_batch_counts
from fairlead.planning.collectives import all_reduce_s
from fairlead.planning.cost import Estimate, estimate, fit_correction
from fairlead.planning.memory import USABLE
from fairlead.planning.model_sketch import sketch_profile
from fairlead.planning.plan import Plan
from fairlead.planning.plan_candidates import shapes
from fairlead.planning.profiles import Calibration, Hardware, Link, ModelProfile, Seat
from fairlead.planning.search import _best_plan_of_shape, _LowerBounds, best_plan, candidates, search
from fairlead.planning.topology import Topology
from fairlead.profiling.profiling_process import TrainingPace, estimate_calibration

from .made import CARD, CPU, FAST, SLOW, hardware, machines, model, models

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(profile=models(), hardware=machines())
def test_every_candidate_can_run(profile: ModelProfile, hardware: Hardware) -> None:
    found = search(profile, hardware)
    assert len({one.plan.id for one in found}) == len(found)
    for one in found:
        plan = one.plan
        assert plan.data * plan.tensor * plan.pipeline == plan.workers_used <= len(hardware.seats)
        assert set(plan.members) <= set(range(len(hardware.seats)))
        assert one.fits and one.memory_bytes <= CPU.memory_bytes
        assert one.memory_bytes <= USABLE * hardware.devices["cpu"].memory_bytes + 1
        assert plan.exact or not profile.exact
        assert profile.tensor_limit % plan.tensor == 0
        if plan.pipeline > 1:
            assert profile.batch_size % (plan.data * plan.microbatches) == 0
        assert one.step_s > 0 and abs(sum(one.parts.values()) - one.step_s) < one.step_s + 1e-9


@quick
@given(profile=models(), hardware=machines())
def test_the_same_input_gives_the_same_output(profile: ModelProfile, hardware: Hardware) -> None:
    assert search(profile, hardware) == search(profile, hardware)
    first = best_plan(profile, hardware)
    found = search(profile, hardware)
    assert (first is None) == (not found)
    if first is not None:
        assert first.adjusted_step_s == found[0].adjusted_step_s  # looking for fewer does not miss the best


@settings(quick, max_examples=25)
@given(profile=models(), hardware=machines())
def test_nothing_is_faster_than_its_lower_bound(profile: ModelProfile, hardware: Hardware) -> None:
    bounds, topology = _LowerBounds(profile, hardware), Topology(hardware)
    for shape in shapes(profile, hardware):
        one = _best_plan_of_shape(profile, topology, shape, inf)
        assert one is None or bounds.step_s(shape) <= one.adjusted_step_s * (1 + 1e-9), one.plan.id


@quick
@given(profile=models(), hardware=machines())
def test_a_faster_link_never_makes_the_best_plan_slower(profile: ModelProfile, hardware: Hardware) -> None:
    before = best_plan(profile, hardware)
    for factor in (1.5, 10.0):
        links = tuple(Link(link.latency_s / factor, link.bytes_per_s * factor) for link in hardware.links)
        after = best_plan(profile, msgspec.structs.replace(hardware, links=links))
        if before is not None:
            assert after is not None and after.adjusted_step_s <= before.adjusted_step_s * (1 + 1e-9)


@quick
@given(profile=models(), hardware=machines())
def test_one_more_worker_never_makes_the_best_plan_slower(profile: ModelProfile, hardware: Hardware) -> None:
    before = best_plan(profile, hardware)
    more = msgspec.structs.replace(hardware, seats=(*hardware.seats, Seat("cpu", "another")))
    after = best_plan(profile, more)
    if before is not None and len({seat.speed for seat in hardware.seats}) == 1 and before.plan.workers_used == 1:
        assert after is not None and after.adjusted_step_s <= before.adjusted_step_s * (1 + 1e-9)


def by_id(profile: ModelProfile, hardware: Hardware) -> dict[str, Estimate]:
    return {one.plan.id: one for one in candidates(profile, hardware)}


def test_a_small_model_is_not_parallelised() -> None:
    found = search(model(2, flops=2e4, parameters=500), hardware(2))
    assert found[0].plan.id == "single"


def test_a_large_batch_on_equal_workers_is_shared_equally() -> None:
    found = search(model(4, flops=4e7, parameters=10_000, batch=256), hardware(4))
    assert found[0].plan.data == 4 and not found[0].plan.shares


def test_a_slow_link_calls_for_a_pipeline() -> None:
    profile = model(8, flops=5e7, parameters=1_000_000)
    found = search(profile, hardware(2, link=SLOW))
    assert found[0].plan.pipeline == 2
    assert found[0].step_s < by_id(profile, hardware(2, link=SLOW))["ddp"].step_s / 1.8
    assert search(profile, hardware(2, link=FAST))[0].plan.pipeline == 1


def test_unequal_workers_get_unequal_shares_and_stages() -> None:
    profile = model(9, flops=5e7, parameters=10_000, batch=96)
    found = search(profile, hardware(2, speeds=(1.0, 0.5)))
    assert found[0].plan.id == "dp2·uneven"
    assert 0.62 < found[0].plan.shares[0] < 0.72
    pipe = next(one.plan for one in search(model(9, flops=5e7, parameters=2_000_000, batch=96),
                hardware(2, speeds=(0.5, 1.0), link=SLOW)) if one.plan.pipeline == 2)  # fmt: skip
    places = {layer: at for at, layer in enumerate(f"layers.{at}" for at in range(9))}
    first = places[pipe.cuts[0]]
    fast = first if pipe.worker(0, 0, 0) == 1 else 9 - first
    assert fast in (6, 7)


def test_what_does_not_fit_is_split_until_it_does() -> None:
    small = msgspec.structs.replace(CPU, memory_bytes=1e8)
    large = model(8, parameters=2_000_000)  # 256 MB with gradients and two moments
    found = search(large, hardware(4, device=small))
    assert found and all(one.plan.sharded or one.plan.pipeline * one.plan.tensor > 1 for one in found)
    assert not by_id(large, hardware(4, device=small))["ddp"].fits
    assert search(large, hardware(1, device=small)) == []


def test_a_spread_model_that_is_made_whole_at_the_end_must_fit_whole() -> None:
    small = msgspec.structs.replace(CPU, memory_bytes=4e8, gathers=1.0)
    large = model(8, parameters=2_000_000)
    spread = [one for one in search(large, hardware(4, device=small)) if one.plan.sharded or one.plan.pipeline > 1]
    assert spread and min(one.memory_bytes for one in spread) > 256e6
    tight = msgspec.structs.replace(small, memory_bytes=2e8)
    assert search(large, hardware(4, device=tight)) == []


def test_products_are_proposed_where_memory_calls_for_them() -> None:
    small = msgspec.structs.replace(CPU, memory_bytes=1e8)
    large = model(8, parameters=2_000_000)
    plans = [one.plan for one in search(large, hardware(4, device=small), on_paper=False)]
    assert any(plan.pipeline > 1 and plan.tensor > 1 for plan in plans)


def test_only_plain_copies_exchange_in_buckets_as_the_workers_do_it() -> None:
    for device in (CARD, CPU):
        every = list(shapes(model(8), hardware(8, device=device, per_node=8)))
        assert any(one.buckets for one in every)
        spread = [one for one in every if one.data > 1 and one.data < one.workers_used]
        assert any(not one.sharded for one in spread) and not any(one.buckets for one in spread)


def test_activations_are_computed_again_only_where_they_would_not_fit() -> None:
    deep = model(16, parameters=1_000, flops=1e9, batch=32)
    needed = search(deep, hardware(1), on_paper=False)[0]
    assert not needed.plan.recompute
    tight = msgspec.structs.replace(CPU, memory_bytes=needed.memory_bytes / 4)
    deep = msgspec.structs.replace(deep, batch_norm=1)  # so that small steps are no way out
    found = search(deep, hardware(1, device=tight), on_paper=False)
    assert [one.plan.id for one in found] == ["single·recompute"]
    assert found[0].memory_bytes < needed.memory_bytes / 4
    assert found[0].step_s == pytest.approx(needed.step_s * 4 / 3, rel=0.05)
    kept = msgspec.structs.replace(deep, layers=tuple(msgspec.structs.replace(one, group=-1) for one in deep.layers))
    assert search(kept, hardware(1, device=tight)) == []


def test_a_model_that_trains_itself_runs_in_copies() -> None:
    alone = model(8, flops=5e7, copies_only=True)
    plans = [one.plan for one in search(alone, hardware(4, link=SLOW))]
    assert plans and all(plan.data == plan.workers_used and not plan.sharded for plan in plans)


def test_batch_norm_is_not_cut_into_micro_batches_unless_allowed() -> None:
    normed = model(6, flops=5e7, parameters=2_000_000, batch_norm=3)
    assert all(one.plan.pipeline == 1 for one in search(normed, hardware(2, link=SLOW)))
    loose = msgspec.structs.replace(normed, exact=False)
    assert any(one.plan.local_statistics for one in search(loose, hardware(2, link=SLOW)))


def test_plans_that_change_the_maths_are_compared_by_time_to_accuracy() -> None:
    profile = model(4, flops=5e6, parameters=1_000_000, exact=False)
    found = search(profile, hardware(4, link=SLOW))
    loose = [one for one in found if not one.plan.exact]
    assert loose and all(one.adjusted_step_s >= one.step_s for one in loose)
    assert found == sorted(found, key=lambda one: one.adjusted_step_s)


def test_measured_steps_set_the_scale() -> None:
    known = Calibration(device="cpu", fixed_s=0.01, sample_s=0.002, optimizer_s=0.005, factors={"dp": 1.5})
    profile = msgspec.structs.replace(model(), calibration=known)
    found = by_id(profile, hardware(2))
    assert abs(found["single"].step_s - (0.01 + 64 * 0.002 + 0.005)) < 1e-9
    free = msgspec.structs.replace(profile, calibration=msgspec.structs.replace(known, factors={}))
    wire_s = all_reduce_s(2, profile.parameters * 4.0, FAST)  # a correction slows workers down, not what they send
    assert abs((found["dp2"].step_s - wire_s) / (by_id(free, hardware(2))["dp2"].step_s - wire_s) - 1.5) < 1e-9
    two = Plan(data=2, sync="allreduce")
    assert abs(fit_correction(free, Topology(hardware(2)), two, found["dp2"].step_s) - 1.5) < 1e-3


def test_shares_are_whole_samples_and_end_together() -> None:
    counts = balanced_batch_counts(90, [0.0, 0.0], [1.0, 2.0])
    assert counts == (60, 30)
    assert balanced_batch_counts(4, [0.0, 100.0], [1.0, 1.0]) == (4, 0)
    assert sum(balanced_batch_counts(7, [0.1, 0.2, 0.3], [1.0, 1.5, 3.0])) == 7


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 12), st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.1, 4.0)), min_size=2, max_size=3)
)  # fmt: skip
def test_no_other_whole_shares_end_earlier(batch: int, replicas: list[tuple[float, float]]) -> None:
    """Also the samples that are left over go to whoever ends first with them."""
    fixed, sample = zip(*replicas, strict=True)

    def ends(counts: tuple[int, ...]) -> float:
        return max(f + s * n if n else 0.0 for f, s, n in zip(fixed, sample, counts, strict=True))

    found = balanced_batch_counts(batch, fixed, sample)
    every = (counts for counts in product(range(batch + 1), repeat=len(fixed)) if sum(counts) == batch)
    assert sum(found) == batch
    assert ends(found) <= min(ends(counts) for counts in every) * (1 + 1e-6)


def test_micro_batches_are_prepared_at_the_pace_of_the_slowest_worker() -> None:
    dear = msgspec.structs.replace(CPU, microbatch_s=1e-3)
    plan = Plan(pipeline=2, microbatches=4, schedule="1f1b", cuts=("layers.3",))

    def more_s(*speeds: float) -> float:
        machines = (Topology(hardware(2, device=device, speeds=speeds)) for device in (CPU, dear))
        plain, with_it = (estimate(model(), topology, plan).step_s for topology in machines)
        return with_it - plain

    assert more_s(1.0, 1.0) > 4e-3  # each worker's share of four, and what is prepared before the first
    assert more_s(0.5, 0.5) == pytest.approx(2 * more_s(1.0, 1.0))
    assert more_s(0.25, 0.25) == pytest.approx(4 * more_s(1.0, 1.0))


def test_a_sketch_has_the_magnitudes_of_a_model_that_was_looked_at() -> None:
    """Its update moves weights and gradients once and two moments twice: 24 bytes a parameter, at memory's pace."""
    drawn = sketch_profile(1_000_000, 64, 6_400, wire.Glance(2e-3, 1e-4, 5_000.0))
    assert drawn.calibration is not None
    assert drawn.calibration.optimizer_s == pytest.approx(24e6 / 5e9)
    assert (drawn.calibration.fixed_s, drawn.calibration.sample_s) == (2e-3, 1e-4)
    looked = estimate_calibration(
        msgspec.structs.replace(drawn, calibration=None), TrainingPace(step_s=0.1, samples=64.0)
    )
    assert looked.optimizer_s == pytest.approx(drawn.calibration.optimizer_s)
    assert (drawn.parameters, drawn.batch_size, drawn.samples, drawn.copies_only) == (1_000_000, 64, 6_400, True)
    assert (drawn.layers[0].activation_bytes, drawn.working_bytes) == (5_000.0, 1_250.0)


def test_shares_follow_speeds_where_times_are_too_short_to_tell_them_apart() -> None:
    """Against a start of 1,000 s the samples' own times vanish: hundreds of them are left over."""
    found = balanced_batch_counts(40_000, [1e3, 1e3], [1e-16, 3e-16])
    assert sum(found) == 40_000 and abs(found[0] - 30_000) < 100


def test_a_pipeline_wins_back_what_its_slowest_worker_has_waited_for_but_never_more_than_it_waited() -> None:
    plan = Plan(pipeline=2, microbatches=4, schedule="1f1b", cuts=("layers.3",))

    def won_back_s(period_s: float, *speeds: float) -> float:
        rested = msgspec.structs.replace(hardware(2, speeds=speeds), period_s=period_s)
        plain = msgspec.structs.replace(rested, period_s=0.0)
        waits = [estimate(model(), Topology(each), plan).parts["bubble"] for each in (plain, rested)]
        return waits[0] - waits[1]

    assert won_back_s(1e-3, 1.0, 1.0) == 0.0
    assert won_back_s(1e-3, 0.75, 0.5) == pytest.approx(0.5e-3)
    assert won_back_s(2e-3, 0.5, 0.75) == pytest.approx(1e-3)
    most_s = won_back_s(1e3, 0.5, 0.5)
    assert most_s == won_back_s(1e6, 0.5, 0.5) and 0 < most_s < 1
