"""Whatever profile is accepted from a worker, planning with it never raises and is bounded (more: make explore)."""

from __future__ import annotations

import os
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, event, example, given, settings
from hypothesis import strategies as st

from fairlead import wire
from fairlead.control.plans.gang_hardware import Machine, gang_hardware
from fairlead.control.plans.model_profiles import check_profile
from fairlead.control.plans.plan_questions import ChooseQuestion, GlanceQuestion, Model
from fairlead.control.plans.replanning import LearnedModel, review
from fairlead.control.plans.speed_curves import in_worker_units, planned_curve
from fairlead.control.reconcile.worker_messages import ImplausibleMessage, check_message
from fairlead.planning.batch_shares import balanced_batch_counts
from fairlead.planning.plan_candidates import shapes
from fairlead.planning.plan_choice import PLAN_FAMILIES
from fairlead.planning.profiles import to_plain
from fairlead.planning.search_budget import SHAPES
from tests.control import made
from tests.control.test_gang_plans import nodes

EXAMPLES = int(os.environ.get("FAIRLEAD_EXAMPLES", "0"))
fuzz = settings(
    max_examples=EXAMPLES or 30, deadline=None, suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
)  # fmt: skip

NUMBERS = st.sampled_from([0, 0.0, 1e-300, 1e-12, 1e-6, 1, 2, 7, 1e3, 1e6, 1e9, 1e12, 1e18]) | st.floats(0, 1e18)
COUNTS = st.sampled_from([0, 1, 2, 3, 7, 64, 1000, 10**6, 10**9, 10**13, 10**18]) | st.integers(0, 10**18)
BATCHES = st.sampled_from([1, 2, 3, 64, 510_510, 2**30, 2**31 - 1, 2**31]) | st.integers(1, 2**31)
SPLITS = st.sampled_from(["column", "row", "column-gathered", "vocabulary", "heads"])


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


LAYERS = st.builds(
    lambda name, more: {"name": name, **more},
    st.sampled_from(["a", "b", "l.0", ""]),
    some(
        parameters=COUNTS, kernels=COUNTS, split_parameters=COUNTS, exchanges=COUNTS, group=st.integers(-1, 3),
        frozen_bytes=NUMBERS, buffer_bytes=NUMBERS, flops=NUMBERS, activation_bytes=NUMBERS, output_bytes=NUMBERS,
        seconds=NUMBERS, split_flops=NUMBERS, split_activation_bytes=NUMBERS, exchange_bytes=NUMBERS,
        splits=st.lists(st.tuples(st.sampled_from(["a", "b"]), SPLITS), max_size=3),
    ),
)  # fmt: skip
TIMED = st.fixed_dictionaries(
    {"device": st.sampled_from(["cpu", "x"]), "fixed_s": NUMBERS, "sample_s": NUMBERS, "optimizer_s": NUMBERS},
    optional={
        "input_s": NUMBERS, "factors": st.dictionaries(st.sampled_from(["*", "dp", "ddp", "single", "fsdp"]), NUMBERS)
    },
)  # fmt: skip
PROFILES = st.builds(
    lambda layers, batch, more: {"layers": layers, "batch_size": batch, **more},
    st.lists(LAYERS, min_size=1, max_size=24),
    BATCHES,
    some(
        samples=COUNTS, batch_norm=COUNTS, tensor_limit=COUNTS, sample_bytes=NUMBERS, parameter_bytes=NUMBERS,
        gradient_bytes=NUMBERS, state_bytes=NUMBERS, working_bytes=NUMBERS, blocks=st.booleans(),
        copies_only=st.booleans(), exact=st.booleans(), dtype=st.sampled_from(["float32", "bf16", "x"]),
        limits=st.just(["no"]), calibration=TIMED,
    ),
)  # fmt: skip
STANDING = {"layers": [{"name": "a"}], "batch_size": 64,
            "calibration": {"device": "cpu", "fixed_s": 0, "sample_s": 0, "optimizer_s": 0}}  # fmt: skip
HUGE = {"layers": [{"name": at} for at in "abcdefgh"], "batch_size": 2**31, "exact": False}


@fuzz
@example(STANDING, 2, "auto", 1.0, 0.1)
@example(HUGE, 4, "fsdp", 1.0, None)
@given(PROFILES, st.sampled_from([1, 2, 3, 4]), st.sampled_from(PLAN_FAMILIES), st.sampled_from([0.5, 1.0, 4.0]),
       st.sampled_from([None, 0.0, 0.1, 1e8]))  # fmt: skip
def test_no_accepted_profile_stops_the_planner(
    said: dict[str, Any], count: int, wanted: str, cpu: float, compute_s: float | None
) -> None:
    try:
        profile = check_profile(wire.Profiled(said))
    except ValueError:
        event("refused")
        return
    assert profile is not None
    model, there = Model(to_plain(profile)), nodes(count, cpu=cpu)
    hardware = gang_hardware(there, {}, Machine())
    assert hardware is not None
    found = ChooseQuestion(model, hardware, wanted, 0.1).answer()
    assert found.plan["step_s"] > 0 and found.plan["samples_per_s"] > 0
    msgspec.msgpack.encode(found)
    job = made.job(max_workers=count, facts={"plan": wanted}, batch_size=64, step=100, total_steps=10_000)
    curve = planned_curve(model.pieces(), {}, job, there, Machine())
    assert curve is None or in_worker_units(curve).unit > 0
    members = [(f"w{at}", f"node-{at}") for at in range(count)]
    running = made.generation(*members, running_s=0.0, first_step=1)
    seen = review(job, running, LearnedModel(model.pieces(), {}, {}), hardware, 20.0, sure=True, restart_s=1.0,
                  compute_s=compute_s)  # fmt: skip
    assert seen.plan is not None
    assert sum(1 for _ in zip(shapes(model.pieces(), hardware), range(SHAPES), strict=False)) < SHAPES


@fuzz
@example(wire.Ready(1, 1, 1, 0, glance=wire.Glance(1e-300, 0.0, 0.0)), 2)
@given(st.builds(wire.Ready, COUNTS, COUNTS, BATCHES, COUNTS, glance=st.builds(wire.Glance, NUMBERS, NUMBERS, NUMBERS)),
       st.sampled_from([1, 2, 4]))  # fmt: skip
def test_no_accepted_glance_stops_the_planner(said: wire.Ready, count: int) -> None:
    try:
        check_message(said, 0.0, 1e6)
    except ImplausibleMessage:
        event("refused")
        return
    hardware = gang_hardware(nodes(count), {}, Machine())
    assert hardware is not None
    found = GlanceQuestion(said, hardware, 0.1).answer()
    assert found.plan["step_s"] > 0


@settings(fuzz, max_examples=EXAMPLES or 200)
@given(BATCHES, st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=4))
def test_shares_of_any_batch_are_whole_samples_that_add_up(batch: int, times: list[tuple[float, float]]) -> None:
    shares = balanced_batch_counts(batch, [fixed for fixed, _ in times], [each for _, each in times])
    assert sum(shares) == batch and min(shares) >= 0
