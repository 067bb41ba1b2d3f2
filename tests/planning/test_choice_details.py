"""What the planner weighs and says: candidates, reasons, corrections and coarse models, value by value."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.planning import curves
from fairlead.planning.batch_shares import balanced_batch_counts
from fairlead.planning.cost import Estimate, estimate, plan_kind
from fairlead.planning.curves import equal_gang, mixed_gang_point, speed_curve
from fairlead.planning.model_coarsening import coarsened
from fairlead.planning.model_corrections import LEAST, MOST, correction_factors, uncorrected, with_ratio
from fairlead.planning.plan import SINGLE, Plan, ddp_plan
from fairlead.planning.plan_candidates import Shape, is_supported, shapes, worker_selections
from fairlead.planning.plan_choice import Choice, choose_plan, memory_in_words, plan_family, replica_plan
from fairlead.planning.plan_reasons import explain_plans, plan_row
from fairlead.planning.profiles import ALL_KINDS, Calibration, Hardware, Layer, ModelProfile
from fairlead.planning.search import best_plan, candidates, search, with_balanced_shares
from fairlead.planning.topology import Topology

from .made import CARD, CPU, FAST, SLOW, hardware, model

replace = msgspec.structs.replace


def estimated(plan: Plan, step_s: float, *, fits: bool = True, factor: float = 1.0, **parts: float) -> Estimate:
    named = {name.replace("_", " "): seconds for name, seconds in parts.items()}
    return Estimate(plan, step_s, 64 / step_s, 1e6, fits, named, factor)


TWO = Plan(data=2, sync="allreduce")

# ------------------------------------------------------------ reasons


def test_the_chosen_plan_says_what_it_saves_against_plain_ddp() -> None:
    chosen = estimated(TWO, 0.2, compute=0.15, exchange=0.05)
    usual = estimated(ddp_plan(2), 0.5, compute=0.15, exchange=0.35)
    assert explain_plans([chosen, usual]) == [
        "fastest of all that fit: 75% of the step is computing; 2.50 times as fast as plain DDP, which spends 350 ms "
        "on exchanging gradients and parameters instead of 50 ms",
        "2.50 times the time, mostly by exchanging gradients and parameters (350 ms)",
    ]
    assert explain_plans([usual]) == ["fastest of all that fit: 70% of the step is exchanging gradients and parameters"]
    large = replace_estimate(usual, fits=False)
    assert explain_plans([chosen, large])[0].endswith("; plain DDP does not fit into memory")
    assert explain_plans([chosen, large])[1] == "does not fit into memory"
    nothing = estimated(ddp_plan(2), 0.2, compute=0.15, exchange=0.05)
    assert explain_plans([chosen, nothing])[0].endswith("; 1.00 times as fast as plain DDP")


def replace_estimate(one: Estimate, *, fits: bool) -> Estimate:
    return Estimate(one.plan, one.step_s, one.samples_per_s, one.memory_bytes, fits, one.parts, one.steps_factor)


def test_other_plans_say_by_what_they_lose() -> None:
    chosen = estimated(SINGLE, 2.0, compute=1.0, optimiser=1.0)
    assert explain_plans([chosen])[0] == (
        "one process is fastest, exchanges would cost more than they save: 50% computing"
    )
    others = [
        estimated(TWO, 2.0099, compute=2.0), estimated(TWO, 2.01, compute=0.5, optimiser=0.5),
        estimated(TWO, 3.0, compute=1.0, bubble=2.0, factor=1.5),
    ]  # fmt: skip
    assert explain_plans([chosen, *others])[1:] == [
        "as fast as the chosen one", "1.00 times the time",
        "2.25 times the time, mostly by idle stages (2 s), needs 1.50 times the steps",
    ]  # fmt: skip


def test_a_row_has_the_figures_of_a_candidate() -> None:
    one = estimated(TWO, 0.2, compute=0.15, exchange=0.05)
    row = plan_row(one, "why", 0.3)
    assert (row["id"], row["bottleneck"], row["reason"], row["measured_step_s"]) == ("dp2", "compute", "why", 0.3)
    assert (row["step_s"], row["samples_per_s"], row["memory_bytes"], row["workers_used"]) == (0.2, 320.0, 10**6, 2)
    assert plan_row(replace_estimate(one, fits=False), "")["bottleneck"] == "memory"
    choice = Choice(one, "first", (estimated(SINGLE, 0.4, compute=0.4),))
    assert [each["reason"] for each in choice.rows()] == ["first", "2.00 times the time, mostly by computing (400 ms)"]


# ------------------------------------------------------------ candidates


def test_workers_are_taken_all_the_fastest_or_those_of_one_node() -> None:
    assert worker_selections(hardware(1)) == [(0,)]
    assert worker_selections(hardware(3, speeds=(1.0, 0.5, 2.0))) == [(2,), (0, 2), (0, 1, 2)]
    pairs = hardware(4, speeds=(1.0, 0.6, 0.9, 0.8), per_node=2)
    assert worker_selections(pairs) == [(0,), (0, 2), (2, 3), (0, 2, 3), (0, 1, 2, 3)]
    many = worker_selections(hardware(12, per_node=4))
    assert [len(each) for each in many] == [1, 2, 4, 8, 12] and many[2] == (0, 1, 2, 3)


def found(profile: ModelProfile, count: int = 4, **more: object) -> list[Shape]:
    return list(shapes(profile, hardware(count), **more))  # type: ignore[arg-type]


def test_every_shape_comes_once_and_uses_no_more_than_there_are() -> None:
    every = found(model())
    assert len(set(every)) == len(every) and all(shape.workers_used <= 4 for shape in every)
    assert {shape.workers_used for shape in found(model(), allow_idle=False)} == {4}
    assert {shape.pipeline for shape in found(model(2), 4)} == {1, 2}  # no more stages than layers
    assert all(shape.data <= 3 for shape in found(model(batch=3)))
    assert {shape.tensor for shape in every} == {1, 2}  # `tensor_limit` is 2
    assert {shape.tensor for shape in found(replace(model(), tensor_limit=1))} == {1}


def test_pipelines_cut_the_batch_into_equal_micro_batches() -> None:
    pipelines = [shape for shape in found(model(batch=24), 2, allow_idle=False) if shape.pipeline == 2]
    assert {shape.microbatches for shape in pipelines} == {2, 4, 6, 8, 12, 24}  # 3 is neither a power nor even
    assert {shape.schedule for shape in pipelines} == {"1f1b", "zero-bubble", "interleaved"}
    assert not any(shape.recompute for shape in pipelines if shape.schedule == "zero-bubble")
    four = [shape for shape in found(model(batch=24), 4, allow_idle=False) if shape.pipeline == 4]
    assert {shape.schedule for shape in four if shape.microbatches == 2} == {"gpipe"}
    assert not any(shape.schedule == "interleaved" for shape in four)  # 6 layers are too few for 8 stages
    assert found(model(batch=7), 4, allow_idle=False) and not any(
        shape.pipeline == 2 and shape.data == 2 for shape in found(model(batch=7), 4, allow_idle=False)
    )


def test_a_batch_of_any_size_is_cut_into_a_bounded_number_of_micro_batches() -> None:
    pipelines = [shape for shape in found(model(2, batch=2048), 2, allow_idle=False) if shape.pipeline == 2]
    assert max(shape.microbatches for shape in pipelines) == 512
    small = [shape for shape in found(model(2, batch=256), 2, allow_idle=False) if shape.pipeline == 2]
    assert max(shape.microbatches for shape in small) == 256


def test_a_mixed_gang_is_rated_by_plans_that_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    best = curves.best_plan

    def watched(profile: ModelProfile, machines: Hardware, *, on_paper: bool = True) -> Estimate | None:
        asked.append(on_paper)
        return best(profile, machines, on_paper=on_paper)

    monkeypatch.setattr(curves, "best_plan", watched)
    point = mixed_gang_point(model(), hardware(2, speeds=(1.0, 0.5)))
    assert asked == [False] and point.plan is not None
    assert mixed_gang_point(model(1, parameters=10**9), hardware(2)).plan is None


def test_plans_that_change_the_maths_are_proposed_only_where_allowed() -> None:
    exact, free = ({shape.sync for shape in found(model(exact=value))} for value in (True, False))
    assert exact == {"none", "allreduce"} and free == {"none", "allreduce", "local-sgd", "parameter-server"}
    assert {shape.compression for shape in found(model(exact=False))} == {"none", "bf16", "int8"}
    copies = found(model(exact=False, copies_only=True))
    assert all(shape.tensor == shape.pipeline == 1 and not shape.sharded and not shape.buckets for shape in copies)
    assert "parameter-server" not in {shape.sync for shape in copies}


def test_only_plans_that_can_run_are_proposed_for_a_job() -> None:
    assert not is_supported(Shape(data=2, sync="parameter-server", recompute=True))
    assert is_supported(Shape(data=2, sync="parameter-server")) and is_supported(Shape(recompute=True))
    real, paper = (found(model(exact=False), on_paper=value) for value in (False, True))
    assert set(real) < set(paper) and all(is_supported(shape) for shape in real)


def test_rings_within_nodes_need_equal_nodes() -> None:
    def rings(count: int, per_node: int) -> set[int]:
        every = shapes(model(), hardware(count, per_node=per_node), allow_idle=False)
        return {shape.group for shape in every if shape.sync == "hierarchical"}

    assert rings(4, 2) == {2} and rings(4, 1) == rings(4, 4) == rings(3, 2) == set()


def test_small_buckets_are_tried_only_for_models_of_two_of_them() -> None:
    def sizes(parameters: int) -> set[int]:
        return {shape.bucket_bytes for shape in found(model(1, parameters=parameters), 2)}

    assert sizes(2 << 18) == {0} and sizes((2 << 18) + 1) == {0, 1 << 20}


def test_a_shape_becomes_a_plan_with_what_the_model_determines() -> None:
    plan = Shape(tensor=2).plan(model(1))
    assert plan.splits == (("layers.0.a", "column"), ("layers.0.b", "row")) and plan.members == ()
    assert Shape(data=2, sync="allreduce", members=(0, 1)).plan(model(1), members=(1, 0)).members == (1, 0)
    norms = model(batch_norm=1)
    assert Shape(microbatches=2).plan(norms).local_statistics and not Shape().plan(norms).local_statistics
    assert Shape(data=2, sync="local-sgd", period=4).plan(norms).local_statistics


# ------------------------------------------------------------ search and choice


def test_the_best_plan_is_the_first_of_all_and_the_baselines_are_always_there() -> None:
    machines = hardware(4, speeds=(0.5, 1.0, 1.0, 0.5))
    every = candidates(model(), machines)
    one = best_plan(model(), machines)
    assert one is not None and one.plan == search(model(), machines)[0].plan
    assert {"ddp"} <= {each.plan.id for each in every}
    alone = [each for each in every if each.plan.workers_used == 1]
    assert alone and min(alone, key=lambda each: each.step_s).plan.members in ((1,), (2,))
    assert [each.adjusted_step_s for each in search(model(), machines)] == sorted(
        each.adjusted_step_s for each in search(model(), machines)
    )
    limit_s = one.adjusted_step_s
    assert all(each.adjusted_step_s <= limit_s for each in search(model(), machines, limit_s=limit_s))
    assert search(model(), machines, limit_s=limit_s / 2) == []


def test_uneven_workers_get_shares_by_which_they_end_together() -> None:
    topology = Topology(hardware(2, speeds=(1.0, 0.5)))
    uneven = with_balanced_shares(model(batch=90), topology, TWO)
    assert uneven.shares == pytest.approx((60 / 90, 30 / 90), abs=0.02) and sum(uneven.shares) == pytest.approx(1)
    assert with_balanced_shares(model(), Topology(hardware(2)), TWO) == TWO
    fetching = model(
        batch=90, calibration=Calibration(device="cpu", fixed_s=0.0, sample_s=0.0, optimizer_s=0, input_s=1)
    )
    assert with_balanced_shares(fetching, topology, TWO).shares == pytest.approx((60 / 90, 30 / 90))


def test_a_replica_that_would_only_delay_the_others_gets_nothing() -> None:
    assert balanced_batch_counts(10, [0.0, 5.0], [1.0, 1.0]) in ((8, 2), (7, 3))
    assert balanced_batch_counts(3, [0.0, 5.0], [1.0, 1.0]) == (3, 0)
    assert balanced_batch_counts(10, [0.0, 0.0], [0.0, 0.0]) == (5, 5)
    assert sum(balanced_batch_counts(7, [0.0, 0.0, 0.0], [1.0, 1.0, 1.0])) == 7


def test_the_margin_decides_between_replicas_and_a_slightly_faster_plan() -> None:
    machines = hardware(2, link=SLOW)
    free = choose_plan(model(), machines, margin=0.0)
    usual = estimate(model(), Topology(machines), replica_plan(2))
    ahead = usual.adjusted_step_s / free.estimate.adjusted_step_s - 1
    assert ahead > 0
    assert choose_plan(model(), machines, margin=ahead * 0.999).plan == free.plan
    stays = choose_plan(model(), machines, margin=ahead * 1.001)
    assert stays.plan == replica_plan(2) and f"only {ahead:.0%} faster" in stays.reason
    assert stays.plan.id not in {one.plan.id for one in stays.others}


def test_memory_is_told_of_the_smallest_worker_that_takes_part() -> None:
    small = replace(CPU, name="small", memory_bytes=1e9)
    machines = hardware(2)
    mixed = replace(
        machines,
        devices={**machines.devices, "small": small},
        seats=(machines.seats[0], replace(machines.seats[1], device="small")),
    )
    one = estimate(model(), Topology(mixed), TWO)
    assert memory_in_words(one, mixed).endswith("of 920.0 MB that it may use")
    alone = estimate(model(), Topology(mixed), Plan(members=(0,)))
    assert memory_in_words(alone, mixed).endswith("of 3.7 GB that it may use")
    assert [plan_family(plan) for plan in (SINGLE, TWO, ddp_plan(2), replace(TWO, sharded=True))] == [
        "single", "dp", "ddp", "fsdp",
    ]  # fmt: skip
    assert plan_family(Shape(pipeline=2, tensor=2)) == "pp" and plan_family(Shape(tensor=2)) == "tp"
    assert replica_plan(1) == SINGLE == ddp_plan(1)


# ------------------------------------------------------------ curves


def test_a_gang_that_crosses_a_level_fills_nodes_and_leaves_at_least_one() -> None:
    def nodes(size: int, level: int, per_node: int = 4) -> list[int]:
        seats = equal_gang(CARD, (FAST, SLOW), size, level, per_node).seats
        return [sum(seat.node == node for seat in seats) for node in sorted({seat.node for seat in seats})]

    assert nodes(6, 0) == [6] and nodes(8, 1) == [4, 4] and nodes(6, 1) == [3, 3] and nodes(3, 1) == [1, 1, 1]
    assert nodes(16, 1) == [4] * 4 and nodes(1, 1) == [1]
    apart = equal_gang(CARD, (FAST, SLOW), 4, 1, 2, 0.5)
    assert apart.links == (FAST, SLOW) and {seat.speed for seat in apart.seats} == {0.5}
    assert equal_gang(CARD, (FAST, SLOW), 4, 0, 2).links == (FAST,)


def test_a_curve_has_a_point_per_type_level_and_size_at_the_workers_speed() -> None:
    points = speed_curve(model(), {"cpu": CPU, "card": CARD}, (FAST, SLOW), (1, 2), speeds={"cpu": 0.5})
    assert [(point.devices, point.level) for point in points] == [
        (((kind, size),), level) for kind in ("card", "cpu") for level in (0, 1) for size in (1, 2)
    ]
    fast, slow = (estimate(model(), Topology(hardware(1, speeds=(speed,))), SINGLE) for speed in (1.0, 0.5))
    single = next(point for point in points if point.devices == (("cpu", 1),))
    assert single.samples_per_s == pytest.approx(slow.samples_per_s) and slow.step_s > fast.step_s
    huge = speed_curve(model(1, parameters=10**9), {"cpu": CPU}, (FAST,), (1,))
    assert [(point.plan, point.samples_per_s) for point in huge] == [(None, 0.0)]
    gang = mixed_gang_point(model(), hardware(2))
    assert gang.devices == (("cpu", 2),) and gang.level == 1 and gang.samples_per_s > 0


# ------------------------------------------------------------ corrections and coarse models


def test_a_ratio_moves_half_of_the_way_and_stays_within_its_bounds() -> None:
    assert with_ratio({}, "dp", 2.0) == {"dp": 2.0}
    assert with_ratio({"dp": 2.0, "tp": 5.0}, "dp", 8.0) == {"dp": 4.0, "tp": 5.0}
    assert with_ratio({}, "dp", 1e6) == {"dp": MOST} and with_ratio({}, "dp", 1e-6) == {"dp": LEAST}


def test_the_common_correction_is_the_median_over_kinds_relative_to_the_usual_one() -> None:
    known = Calibration(device="cpu", fixed_s=1e-3, sample_s=1e-3, optimizer_s=1e-3, factors={"dp": 9.0})
    timed, machines = model(calibration=known), hardware(2, device=replace(CPU, factors={"dp": 1.5}))
    seen = {"single": 2.0, "dp": 6.0, "fsdp": 3.0}
    assert correction_factors(timed, machines, seen) == pytest.approx(
        {ALL_KINDS: 3.0, "single": 2 / 3, "dp": 2.0, "fsdp": 1.0}
    )
    plain = uncorrected(timed)
    assert plain.calibration is not None and plain.calibration.factors == {}


def test_a_deep_model_is_merged_into_pieces_of_equal_weight() -> None:
    deep = model(12)
    few = coarsened(deep, 4)
    assert [layer.name for layer in few.layers] == ["layers.0", "layers.3", "layers.6", "layers.9"]
    assert [layer.kernels for layer in few.layers] == [12] * 4
    assert coarsened(deep, 12) is deep and coarsened(deep, 20) is deep
    first = few.layers[0]
    assert len(first.splits) == 6 and first.exchanges == 6 and first.exchange_bytes == 3 * 8e3
    assert first.output_bytes == 4e3 and first.parameters == 1_500_000 == first.split_parameters


def test_merged_layers_keep_the_output_of_the_last_and_a_group_only_if_all_share_it() -> None:
    layers = tuple(
        Layer(name=f"l{at}", output_bytes=at, seconds=1.0, group=group) for at, group in enumerate((1, 1, 2, 3))
    )
    few = coarsened(ModelProfile(layers=layers, batch_size=8), 2)
    assert [(layer.name, layer.output_bytes, layer.group, layer.seconds) for layer in few.layers] == [
        ("l0", 1, 1, 2.0), ("l2", 3, 0, 2.0),
    ]  # fmt: skip
    empty = ModelProfile(layers=tuple(Layer(name=f"l{at}") for at in range(5)), batch_size=8)
    assert len(coarsened(empty, 2).layers) <= 2, "layers without weight can be merged, too"


def test_the_kind_of_a_shape_is_that_of_its_plan() -> None:
    for shape in shapes(model(exact=False), hardware(2), allow_idle=False):
        if shape.pipeline == 1:
            assert plan_kind(shape) == plan_kind(shape.plan(model(exact=False)))
