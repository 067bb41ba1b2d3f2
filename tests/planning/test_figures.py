"""Predictions equal the formulas of docs/planning.md, worked out here by hand for one small model."""

from __future__ import annotations

import math

import msgspec
import pytest

from fairlead.errors import InvalidSpec
from fairlead.planning import cost, memory
from fairlead.planning.collectives import (
    QUOTA_WAIT,
    all_gather_s,
    all_reduce_s,
    exchange_cost_s,
    gather_cpu_s,
    hierarchical_s,
    is_sent_directly,
    message_count,
    quota_wait_s,
    reduce_scatter_s,
    ring_cpu_s,
    slowest_link,
)
from fairlead.planning.cost import estimate, pipeline_s, plan_kind, stage_edges, stage_s, steps_factor
from fairlead.planning.layers import layer_sums
from fairlead.planning.plan import SINGLE, Plan
from fairlead.planning.profiles import (
    ALL_KINDS,
    Calibration,
    Device,
    Hardware,
    Layer,
    Link,
    ModelProfile,
    Seat,
    correction,
)
from fairlead.planning.replica_sync import exposed_s, optimizer_s, step_messages_s, updated_parameters
from fairlead.planning.topology import Topology, slowed, weakest_device

replace = msgspec.structs.replace

CARD = Device(
    name="card", flops_per_s={"float32": 1e9}, efficiency=0.5, memory_bytes=1e6, memory_bytes_per_s=1e8, launch_s=1e-3,
    overlap=0.5, step_s=1e-4, microbatch_s=1e-3, gathers=1.0,
)  # fmt: skip
LAYERS = (
    Layer(name="a", parameters=1000, flops=1e6, activation_bytes=100, output_bytes=10, kernels=2, group=1),
    Layer(name="b", parameters=3000, flops=3e6, activation_bytes=300, output_bytes=20, group=1, frozen_bytes=40),
    Layer(name="c", parameters=2000, flops=2e6, activation_bytes=200, output_bytes=30, buffer_bytes=50),
)
MODEL = ModelProfile(layers=LAYERS, batch_size=8)
LINK = Link(1e-3, 1e6)


def machines(count: int, device: Device = CARD, per_node: int = 1, **more: object) -> Hardware:
    seats = tuple(Seat(device.name, f"n{at // per_node}") for at in range(count))
    return Hardware(devices={device.name: device}, seats=seats, links=(Link(1e-4, 1e8), LINK), **more)  # type: ignore[arg-type]


def layer_s(at: int, samples: float) -> float:
    layer = LAYERS[at]
    per_sample = layer.flops / 0.5e9 + 2 * layer.activation_bytes / 1e8
    return 3 * (layer.kernels * 1e-3 + samples * per_sample)


def test_a_run_of_layers_costs_the_sum_of_its_layers() -> None:
    sums = layer_sums(MODEL, CARD, 0.5, 4, 1, LINK)
    assert sums.busy_s(0, 1) == pytest.approx(layer_s(0, 4) / 0.5)
    assert sums.busy_s(1, 3) == pytest.approx((layer_s(1, 4) + layer_s(2, 4)) / 0.5)
    again = layer_sums(MODEL, CARD, 0.5, 4, 1, LINK, recompute=True)
    assert again.busy_s(0, 3) == pytest.approx(4 / 3 * sums.busy_s(0, 3))
    assert (sums.parameter_count(0, 2), sums.largest_layer(0, 1), sums.largest_layer(0, 3)) == (4000, 1000, 3000)
    assert (sums.activation_bytes(0, 2), sums.input_bytes(0), sums.input_bytes(2)) == (1600, 0, 80)
    assert (sums.frozen_bytes(0, 3), sums.buffer_bytes(0, 2), sums.buffer_bytes(0, 3)) == (40, 0, 50)
    assert sums.layers == 3 and sums.exchange_s(0, 3) == 0


def test_layers_of_a_group_are_recomputed_together_and_others_by_themselves() -> None:
    sums = layer_sums(MODEL, CARD, 1.0, 1, 1, LINK)
    assert sums.recompute_bytes(0, 3, 2.0) == (2 * 20, 400)  # the inputs of (a, b) and c; a and b at once
    assert sums.recompute_bytes(1, 3, 1.0) == (10 + 20, 300)
    kept = replace(MODEL, layers=(replace(LAYERS[0], group=-1), *LAYERS[1:]))
    assert layer_sums(kept, CARD, 1.0, 1, 1, LINK).recompute_bytes(0, 3, 1.0) == (100 + 10 + 20, 300)


def test_a_measured_model_divides_its_time_among_the_layers() -> None:
    known = Calibration(device="card", fixed_s=0.4, sample_s=0.06, optimizer_s=0.1, input_s=0.01)
    timed = replace(MODEL, calibration=known)
    sums = layer_sums(timed, CARD, 1.0, 2, 1, LINK)
    assert sums.busy_s(0, 3) == pytest.approx(0.4 + 2 * 0.06)
    seconds = replace(
        timed, layers=tuple(replace(layer, seconds=s) for layer, s in zip(LAYERS, (1, 2, 3), strict=True))
    )
    each = layer_sums(seconds, CARD, 1.0, 2, 1, LINK)
    assert [each.busy_s(at, at + 1) for at in range(3)] == pytest.approx([0.2 + 0.02, 0.1 + 0.04, 0.1 + 0.06])
    elsewhere = layer_sums(timed, replace(CARD, name="other"), 1.0, 2, 1, LINK)
    assert elsewhere.busy_s(0, 3) == pytest.approx(sum(layer_s(at, 2) for at in range(3)))
    assert optimizer_s(timed, CARD, 0.5, 3000) == pytest.approx(0.1 / 2 / 0.5)
    assert optimizer_s(MODEL, CARD, 0.5, 3000) == pytest.approx(3000 * (16 + 8 + 4) / 1e8 / 0.5)


def test_tensor_workers_divide_what_is_split_and_pay_for_its_exchanges() -> None:
    layer = Layer(
        name="l", parameters=1000, flops=4e6, activation_bytes=100, splits=(("l", "column"),), split_parameters=800,
        split_flops=2e6, split_activation_bytes=60, exchange_bytes=1000, exchanges=2,
    )  # fmt: skip
    sums = layer_sums(replace(MODEL, layers=(layer,)), CARD, 1.0, 4, 2, LINK)
    exchange = 2 * exchange_cost_s(all_reduce_s(2, 2000, LINK), ring_cpu_s(2, 2000, CARD), CARD, 1.0)
    assert sums.exchange_s(0, 1) == pytest.approx(exchange)
    whole = 3 * (1e-3 + 4 * (4e6 / 0.5e9 + 200 / 1e8) * 0.75)
    assert sums.busy_s(0, 1) == pytest.approx(whole + exchange)
    assert (sums.parameter_count(0, 1), sums.activation_bytes(0, 1)) == (600, 4 * 70)
    again = layer_sums(replace(MODEL, layers=(layer,)), CARD, 1.0, 4, 2, LINK, recompute=True)
    assert again.exchange_s(0, 1) == pytest.approx(1.5 * exchange)
    alone = layer_sums(replace(MODEL, layers=(layer,)), CARD, 1.0, 4, 1, LINK)
    assert (alone.parameter_count(0, 1), alone.exchange_s(0, 1)) == (1000, 0)


def test_a_stage_is_busy_with_computing_or_sending_whichever_takes_longer() -> None:
    sums = layer_sums(MODEL, CARD, 1.0, 2, 1, LINK)
    computing = layer_s(1, 2) + 1e-3
    sending = 2 * (1e-3 + 20 / 1e6)
    assert stage_s(sums, 0, 1, CARD, 1.0, None) == pytest.approx((layer_s(0, 2) + 1e-3,) * 2)
    assert stage_s(sums, 1, 2, CARD, 1.0, LINK) == pytest.approx((computing + 2e-4, computing + 2e-4 + sending))
    slow = Link(1.0, 1e6)
    assert stage_s(sums, 1, 2, CARD, 1.0, slow)[0] == pytest.approx(2 * (1 + 20 / 1e6))
    assert stage_s(sums, 0, 3, CARD, 1.0, None)[0] == pytest.approx(sums.busy_s(0, 3))  # the whole model is no stage
    talking = replace(CARD, message_s=1e-2)
    assert stage_s(sums, 1, 2, talking, 0.5, LINK)[0] == pytest.approx(layer_s(1, 2) + 2e-3 + 2 * 1e-2 / 0.5)


PIPELINE = Plan(pipeline=2, microbatches=4, schedule="1f1b", cuts=("b",))


@pytest.mark.parametrize(
    ("schedule", "chunks", "expected"),
    [("1f1b", 1, 16), ("gpipe", 1, 16), ("interleaved", 2, 14), ("zero-bubble", 1, 1.08 * (12 + 4 / 3))],
)
def test_the_schedule_decides_how_much_of_the_filling_is_idle(schedule: str, chunks: int, expected: float) -> None:
    cuts = ("b",) if chunks == 1 else ("a", "b", "c")
    plan = replace(PIPELINE, schedule=schedule, chunks=chunks, cuts=cuts)
    assert pipeline_s(plan, 3.0, 7.0) == pytest.approx(expected)
    assert pipeline_s(plan, 3.0, 2.0) == pytest.approx(12 * (1.08 if schedule == "zero-bubble" else 1))


def test_the_step_of_a_pipeline_is_its_slowest_stage_the_filling_and_the_end() -> None:
    one = estimate(MODEL, Topology(machines(2)), PIPELINE)
    first, second = layer_s(0, 2) + 1e-3, layer_s(1, 2) + layer_s(2, 2) + 1e-3 + 2e-4
    sending = 2 * (1e-3 + 20 / 1e6)
    update = 5000 * 28 / 1e8
    total = 4 * second + first + sending + 2 * 1e-3
    assert one.step_s == pytest.approx(total + update)
    assert one.parts["optimiser"] == pytest.approx(update)
    assert one.parts["compute"] == pytest.approx(4 * (first + second) / 2)
    assert one.parts["bubble"] == pytest.approx(total - 4 * (first + second) / 2)
    assert one.parts["exchange"] == pytest.approx(0) and one.parts["waiting"] == pytest.approx(0)
    assert one.samples_per_s == pytest.approx(8 / one.step_s)
    assert stage_edges(MODEL, PIPELINE) == (0, 1, 3)
    with pytest.raises(InvalidSpec, match="no layer x to cut at"):
        stage_edges(MODEL, replace(PIPELINE, cuts=("x",)))


def test_one_process_computes_updates_and_fetches_its_samples() -> None:
    known = Calibration(device="card", fixed_s=0.4, sample_s=0.06, optimizer_s=0.1, input_s=0.01)
    timed, alone = replace(MODEL, calibration=known), machines(1)
    one = estimate(timed, Topology(alone), SINGLE)
    assert one.step_s == pytest.approx(0.4 + 8 * 0.06 + 0.1 + 8 * 0.01) and one.bottleneck == "compute"
    assert one.parts["input"] == pytest.approx(0.08)
    assert estimate(timed, Topology(alone), SINGLE, factor=2.0).step_s == pytest.approx(2 * one.step_s)
    learned = replace(timed, calibration=replace(known, factors={ALL_KINDS: 3.0}))
    assert estimate(learned, Topology(alone), SINGLE).step_s == pytest.approx(3 * one.step_s)


def test_the_kind_of_a_plan_names_every_way_in_which_it_is_divided() -> None:
    sharded = Plan(data=2, tensor=2, sync="allreduce", sharded=True, splits=(("a", "column"),))
    assert plan_kind(sharded) == "fsdp+tp" and plan_kind(SINGLE) == "single" and plan_kind(PIPELINE) == "pp-1f1b"
    assert plan_kind(Plan(data=2, sync="allreduce", buckets=True)) == "ddp"
    assert plan_kind(Plan(data=2, sync="parameter-server", staleness=2)) == "ps"
    assert plan_kind(Plan(data=2, sync="allreduce")) == "dp"


def test_plans_that_change_the_maths_need_more_steps() -> None:
    assert steps_factor(Plan(data=2, sync="local-sgd", period=8)) == pytest.approx(1 + 0.004 * 7)
    assert steps_factor(Plan(data=2, sync="parameter-server", staleness=4)) == pytest.approx(1.12)
    assert steps_factor(Plan(data=2, sync="allreduce", compression="int8")) == pytest.approx(1.01)
    assert steps_factor(Plan(data=2, sync="allreduce", compression="bf16")) == 1.0
    one = cost.Estimate(SINGLE, 2.0, 4.0, 0.0, True, {}, 1.5)
    assert one.adjusted_step_s == 3.0


# ------------------------------------------------------------ collectives


def test_an_all_reduce_is_a_ring_for_large_sizes_and_a_tree_for_small_ones() -> None:
    assert all_reduce_s(4, 8e6, LINK) == pytest.approx(6 * 1e-3 + 1.5 * 8)
    assert all_reduce_s(8, 1000, LINK) == pytest.approx(6 * 1e-3 + 2 * 1e-3)  # three rounds up and down
    assert all_reduce_s(1, 1e6, LINK) == all_reduce_s(4, 0, LINK) == 0.0
    assert all_reduce_s(2, 1, LINK) > 0


def test_a_gather_costs_gloo_more_bytes_than_an_ideal_ring() -> None:
    assert all_gather_s(4, 4e6, LINK) == pytest.approx(3e-3 + 3.0)
    assert all_gather_s(4, 4e6, LINK, "gloo") == pytest.approx(3e-3 + 1.15 * 3.0)
    assert reduce_scatter_s(4, 4e6, LINK) == pytest.approx(3e-3 + 3.0)
    assert reduce_scatter_s(16, 16e6, LINK, "gloo") == pytest.approx(8e-3 + 2 * 15.0)  # not 15 latencies
    assert all_gather_s(1, 1e6, LINK) == reduce_scatter_s(1, 1e6, LINK) == 0.0
    assert all_gather_s(2, 0, LINK) == reduce_scatter_s(2, 0, LINK) == 0.0
    inner = Link(1e-5, 1e8)
    assert hierarchical_s(2, 4, 1e6, inner, LINK) == pytest.approx(
        2 * all_reduce_s(4, 1e6, inner) + all_reduce_s(2, 1e6, LINK)
    )


def test_small_sums_of_gloo_are_sent_to_all_at_once() -> None:
    gloo = replace(CARD, backend="gloo", message_s=1e-4, byte_s=1e-9)
    assert is_sent_directly(2, 1 << 18, gloo) and not is_sent_directly(2, (1 << 18) + 1, gloo)
    assert not is_sent_directly(2, 10, CARD)
    assert message_count(3, 10, gloo) == 2 and message_count(3, 1e6, gloo) == 8
    assert ring_cpu_s(3, 3e6, gloo) == pytest.approx(8 * 1e-4 + 4 / 3 * 3e-3)
    assert gather_cpu_s(3, 1e6, gloo) == pytest.approx(2 * (1e-4 + 1e-3))
    assert quota_wait_s(5, 0.25, 0.1) == pytest.approx(QUOTA_WAIT * 5 * 0.75 * 0.1)
    assert quota_wait_s(5, 1.0, 0.1) == quota_wait_s(5, 2.0, 0.1) == 0.0


def test_an_exchange_wins_back_the_rest_that_a_quota_would_force() -> None:
    assert exchange_cost_s(1.0, 0.1, CARD, 0.5) == pytest.approx(2e-4 + 1.0)
    assert exchange_cost_s(0.1, 1.0, CARD, 0.5) == pytest.approx(2e-4 + 2.0)
    assert exchange_cost_s(1.0, 0.1, CARD, 0.5, period_s=0.4, busy_s=9.0) == pytest.approx(2e-4 + 1.0 - 0.2)
    assert exchange_cost_s(1.0, 0.1, CARD, 0.5, period_s=9.0, busy_s=0.2) == pytest.approx(2e-4 + 1.0 - 0.2)
    assert exchange_cost_s(0.3, 0.1, CARD, 0.5, period_s=9.0, busy_s=9.0) == pytest.approx(2e-4 + 0.2)
    assert exchange_cost_s(1.0, 0.1, CARD, 1.0, period_s=9.0, busy_s=9.0) == pytest.approx(1e-4 + 1.0)


def test_groups_that_leave_a_node_at_once_share_its_link() -> None:
    four = machines(4, per_node=2)
    assert slowest_link(four, [[0, 1], [2, 3]]) == four.links[0]
    assert slowest_link(four, [[0, 2]]) == LINK
    assert slowest_link(four, [[0, 2], [1, 3]]) == Link(1e-3, 5e5)
    crawling = replace(four, links=(Link(1.0, 10.0), LINK))
    assert slowest_link(crawling, [[0, 2]]) == Link(1.0, 10.0)  # a ring across nodes also passes within them


# ------------------------------------------------------------ exchanges between replicas


def exposed(plan: Plan, device: Device = CARD, model: ModelProfile = MODEL, backward_s: float = 0.0) -> float:
    placement = Topology(machines(plan.workers_used, device)).placement(plan)
    return exposed_s(model, plan, placement, device, 1.0, model.parameters, 3000, backward_s)


COPIES_S = 4 * 24_000 / 1e8


def test_gradients_in_one_piece_are_copied_and_summed() -> None:
    assert exposed(SINGLE) == 0.0
    plain = COPIES_S + 1e-4 + all_reduce_s(2, 24_000, LINK)
    assert exposed(Plan(data=2, sync="allreduce")) == pytest.approx(plain)
    half = COPIES_S + 1e-4 + all_reduce_s(2, 12_000, LINK)
    assert exposed(Plan(data=2, sync="allreduce", compression="bf16")) == pytest.approx(half)
    period = (all_reduce_s(2, 24_000, LINK) + COPIES_S + 1e-4) / 4
    assert exposed(Plan(data=2, sync="local-sgd", period=4)) == pytest.approx(period)


def test_each_batch_norm_adds_two_small_sums() -> None:
    plan = Plan(data=2, sync="allreduce")
    with_norms = replace(MODEL, batch_norm=3)
    each = 2 * (1e-4 + all_reduce_s(2, 4096.0, LINK))
    assert exposed(plan, model=with_norms) - exposed(plan) == pytest.approx(3 * each)


def test_buckets_hide_behind_the_backward_pass_all_but_the_last() -> None:
    plan = Plan(data=2, sync="allreduce", buckets=True)
    whole = all_reduce_s(2, 24_000, LINK)
    assert exposed(plan) == pytest.approx(COPIES_S + 1e-4 + whole)  # one bucket: all of it is the last
    two = replace(plan, bucket_bytes=12_000)
    assert exposed(two) == pytest.approx(COPIES_S + 2e-4 + whole)
    assert exposed(two, backward_s=whole / 2) == pytest.approx(COPIES_S + 2e-4 + 0.75 * whole)  # half of it overlaps
    assert exposed(two, backward_s=99.0) == pytest.approx(COPIES_S + 2e-4 + whole / 2)


def test_int8_gathers_the_gradients_of_all_replicas() -> None:
    plan = Plan(data=4, sync="allreduce", compression="int8")
    moved = (12 + 4.25 * 4) * 24_000 / 1e8
    wire = all_gather_s(4, 4 * 6_000, LINK)
    assert exposed(plan) == pytest.approx(moved + 1e-4 + wire + 1e-4 + 1e-3)


def test_a_parameter_server_pulls_and_pushes_each_piece() -> None:
    plan = Plan(data=2, sync="parameter-server", staleness=2)
    assert exposed(plan) == pytest.approx(2 * COPIES_S + 3e-4 + 4e-3 + 24_000 / 1e6)


def test_sharded_parameters_are_gathered_twice_per_micro_batch() -> None:
    plan = Plan(data=2, sync="allreduce", sharded=True)
    gather = all_gather_s(2, 24_000, LINK)
    started = 3 * 3 * (1e-4 + 1e-3)
    assert exposed(plan) == pytest.approx(started + 3 * gather)
    assert exposed(replace(plan, microbatches=2)) == pytest.approx(2 * (started + 3 * gather))
    assert exposed(plan, backward_s=99.0) == pytest.approx(
        started + 0.5 * 2 * gather
    )  # the largest layer is not hidden
    assert (updated_parameters(plan, 10), updated_parameters(SINGLE, 10)) == (5, 10)
    assert updated_parameters(Plan(data=2, sync="parameter-server"), 10) == 5


def test_control_messages_cost_only_where_they_do_not_travel_with_gradients() -> None:
    gloo = replace(CARD, backend="gloo", message_s=1e-4, byte_s=1e-9)

    def cost_of(plan: Plan, device: Device = gloo) -> float:
        return step_messages_s(plan, Topology(machines(plan.workers_used, device)).placement(plan), device, 1.0)

    assert cost_of(SINGLE) == cost_of(Plan(data=2, sync="allreduce")) == cost_of(PIPELINE, CARD) == 0.0
    expected = 1e-4 + max(1e-4 + 64e-9, 1e-3 + 64 / 1e6)
    assert cost_of(PIPELINE) == pytest.approx(expected)
    assert cost_of(Plan(data=2, sync="allreduce", buckets=True)) == pytest.approx(expected)


# ------------------------------------------------------------ memory


def held(plan: Plan, stage: int = 0, start: int = 0, stop: int = 3, model: ModelProfile = MODEL) -> float:
    sums = layer_sums(model, CARD, 1.0, 2, 1, LINK, plan.recompute)
    return memory.stage_bytes(model, plan, sums, start, stop, stage)


STILL = 6000 * 12 + 40 + 50  # parameters, two moments, frozen weights and buffers
ACTIVATIONS = 2 * 600


def test_one_pass_frees_activations_as_gradients_appear() -> None:
    fullest = max(200 + 24_000, 800 + 20_000, 1200 + 8_000)
    assert held(SINGLE) == STILL + fullest
    assert held(Plan(recompute=True)) == STILL + 800 + max(40, 24_000)


def test_replicas_hold_a_buffer_for_the_exchange_and_more_with_compression() -> None:
    plain = held(Plan(data=2, sync="allreduce"))
    assert plain == held(SINGLE) + 24_000
    assert held(Plan(data=2, sync="allreduce", compression="bf16")) == plain + 12_000
    assert held(Plan(data=2, sync="allreduce", compression="int8")) == plain + 24_000 * (2.25 * 2 + 2.25)
    assert held(Plan(data=2, sync="parameter-server")) == plain + 2 * 24_000


def test_micro_batches_keep_gradients_and_those_of_the_largest_layer_twice() -> None:
    assert held(Plan(microbatches=2)) == STILL + 24_000 + 12_000 + ACTIVATIONS


def test_sharding_divides_all_but_the_gathered_layers() -> None:
    sharded = Plan(data=2, sync="allreduce", sharded=True)
    part = (6000 * 12 + 40 + 24_000) / 2 + 50
    assert held(sharded) == part + 2 * 3000 * 8 + ACTIVATIONS
    assert held(replace(sharded, microbatches=2)) == part + 3 * 3000 * 8 + ACTIVATIONS


def test_a_stage_holds_the_micro_batches_in_flight_with_their_inputs_and_outputs() -> None:
    flight = 2  # the first of two stages under 1F1B
    expected = 1000 * 12 + 4000 + 4000 + flight * (200 + 20)
    assert held(PIPELINE, 0, 0, 1) == expected
    whole = replace(MODEL, blocks=False)
    again = replace(PIPELINE, recompute=True)
    last = 5000 * 12 + 90 + 20_000 + 12_000 + 20
    assert held(again, 1, 1, 3, whole) == last + 20 + 1000
    assert held(again, 1, 1, 3) == last + (20 + 40) + 600


@pytest.mark.parametrize(
    ("schedule", "stage", "many"),
    [("gpipe", 0, 8), ("1f1b", 0, 4), ("1f1b", 3, 1), ("zero-bubble", 0, 4), ("zero-bubble", 3, 4 * 1.35)],
)  # fmt: skip
def test_micro_batches_in_flight_follow_from_the_schedule(schedule: str, stage: int, many: float) -> None:
    plan = Plan(pipeline=4, microbatches=8, schedule=schedule, cuts=("a", "b", "c"))  # type: ignore[arg-type]
    assert memory.in_flight(plan, stage) == pytest.approx(many)
    assert memory.in_flight(SINGLE, 0) == 1.0


def test_interleaved_stages_fill_one_after_the_other() -> None:
    plan = Plan(pipeline=2, microbatches=8, schedule="interleaved", chunks=2, cuts=("a", "b", "c"))
    assert memory.in_flight(plan, 0) == (2 + 2 + 1) / 2 and memory.in_flight(plan, 1) == 3 / 2
    assert memory.in_flight_by_chunk(4, 2, 2, 1) == ((2, 1), (3, 0))
    assert memory.in_flight_by_chunk(4, 2, 2, 0) == ((3, 2), (4, 1))
    assert memory.in_flight_by_chunk(8, 4, 2, 3) == ((4, 1), (5, 0))


def test_a_distributed_model_is_gathered_to_hand_it_over() -> None:
    sharded = Plan(data=2, sync="allreduce", sharded=True)
    weights = 24_000 + 90
    assert memory.handover_bytes(MODEL, SINGLE, CARD) == 0.0
    assert memory.handover_bytes(MODEL, sharded, CARD) == 2 * weights + 48_000
    large = replace(MODEL, layers=(replace(LAYERS[0], parameters=10**9),))
    assert memory.handover_bytes(large, sharded, CARD) == 4e9
    assert memory.handover_bytes(large, replace(PIPELINE), replace(CARD, gathers=0.5)) == 4e9
    assert memory.fits(920_000, CARD) and not memory.fits(920_001, CARD)


# ------------------------------------------------------------ hardware


def test_the_level_that_workers_cross_follows_from_their_paths() -> None:
    seats = tuple(
        Seat("card", f"n{at}", path=path)
        for at, path in enumerate((("eu", "r1"), ("eu", "r1"), ("eu", "r2"), ("us", "r9")))
    )
    hardware = Hardware(devices={"card": CARD}, seats=(*seats, seats[0]), links=(LINK,) * 4)
    assert [hardware.level(pair) for pair in ((0, 4), (0, 1), (0, 2), (0, 3))] == [0, 1, 2, 3]
    assert replace(hardware, links=(LINK,) * 2).level((0, 3)) == 1


def test_workers_of_a_node_share_its_cores() -> None:
    hardware = machines(2, per_node=2, cores={"n0": 1.5})
    assert [hardware.speed(0, busy) for busy in (0, 1, 2, 3)] == [1.0, 1.0, 0.75, 0.5]
    assert machines(2, per_node=2).speed(0, 9) == 1.0


def test_hardware_names_the_devices_that_it_does_not_know() -> None:
    with pytest.raises(InvalidSpec, match="unknown devices: tpu"):
        Hardware(devices={"card": CARD}, seats=(Seat("tpu", "n0"),), links=(LINK,))
    with pytest.raises(InvalidSpec, match="no workers or no links"):
        Hardware(devices={"card": CARD}, seats=(), links=(LINK,))


def test_a_correction_is_learned_or_the_usual_one_of_the_worst_device() -> None:
    usual = replace(CARD, factors={"ddp": 1.5, "tp": 2.0})
    assert correction(MODEL, [CARD, usual], "ddp+tp") == 3.0 and correction(MODEL, [CARD], "ddp") == 1.0
    known = Calibration(device="card", fixed_s=0, sample_s=0, optimizer_s=0, factors={ALL_KINDS: 2.0, "ddp": 1.2})
    learned = replace(MODEL, calibration=known)
    assert correction(learned, [usual], "ddp") == pytest.approx(2.4) and correction(learned, [usual], ALL_KINDS) == 2.0
    assert correction(learned, [usual], "tp") == 4.0


def test_parts_on_unlike_devices_are_as_good_as_the_worst_in_every_respect() -> None:
    other = replace(
        CARD,
        name="b",
        flops_per_s={"float32": 2e9, "bfloat16": 3e9},
        memory_bytes=5e5,
        launch_s=2e-3,
        backend="gloo",
        factors={"tp": 2.0},
    )
    worst = weakest_device([CARD, other])
    assert (worst.name, worst.backend, worst.memory_bytes, worst.launch_s) == ("b+card", "gloo", 5e5, 2e-3)
    assert worst.flops_per_s == {"float32": 1e9, "bfloat16": 1e9} and worst.factors == {"tp": 2.0}
    assert weakest_device([CARD, CARD]) is CARD


def test_a_placement_knows_the_links_of_every_group() -> None:
    plan = Plan(data=4, sync="hierarchical", group=2)
    found = Topology(machines(4, per_node=2)).placement(plan)
    assert (found.inner, found.outer, found.data) == (Link(1e-4, 1e8), LINK, LINK)
    assert found.identical and found.speeds == ((1.0,) * 4,)
    assert slowed(found, 4.0).speeds == ((0.25,) * 4,) and slowed(found, 1.0) is found
    ring = Topology(machines(2)).placement(PIPELINE)
    assert ring.stages == (LINK,) and ring.wrap_around == LINK


def test_no_step_takes_no_time_and_no_worker_needs_endless_memory() -> None:
    nothing = replace(MODEL, layers=(Layer(name="a", kernels=0),))
    assert estimate(nothing, Topology(machines(1)), SINGLE).step_s == cost.LEAST_S
    endless = replace(MODEL, layers=(Layer(name="a", activation_bytes=math.inf, flops=1.0),))
    one = estimate(endless, Topology(machines(1)), SINGLE)
    assert one.memory_bytes == cost.MOST_BYTES and not one.fits
