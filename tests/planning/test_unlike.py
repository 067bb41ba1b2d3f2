"""Workers of unlike devices: nobody is asked for more memory than it has, and nobody is thought faster than it is."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.planning.cost import estimate, stage_edges
from fairlead.planning.layers import layer_sums
from fairlead.planning.memory import USABLE, handover_bytes, stage_bytes
from fairlead.planning.plan import Plan
from fairlead.planning.profiles import Hardware, ModelProfile, Seat
from fairlead.planning.search import candidates, search
from fairlead.planning.topology import Topology, weakest_device
from fairlead.planning.transformer import Transformer
from fairlead.profiling.device_types import cluster_of, known_device

from .made import CPU, FAST, SLOW, model, models

quick = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LARGE = Transformer(24, hidden=2048, heads=16, sequence=1024).profile(32)


def pair(first: str, second: str) -> Hardware:
    near = cluster_of([(1, 2, "a100")]).links[0]
    devices = {name: known_device(name) for name in (first, second)}
    return Hardware(devices=devices, seats=(Seat(first, "n0"), Seat(second, "n0")), links=(near,))


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[ModelProfile, Hardware]:
    """A model for up to four workers, of devices that differ in speed and of which some are too small for it."""
    profile = draw(models())
    room = draw(st.sampled_from([0.4, 0.7, 1.2, 3.0])) * (16.0 * profile.parameters + 1e6)
    small = msgspec.structs.replace(CPU, name="small", memory_bytes=room)
    large = msgspec.structs.replace(CPU, name="large", flops_per_s={"float32": draw(st.sampled_from([20e9, 90e9]))})
    kinds = draw(st.lists(st.sampled_from(["small", "large"]), min_size=2, max_size=4))
    per_node = draw(st.sampled_from([1, 2, 4]))
    seats = tuple(Seat(kind, f"n{at // per_node}") for at, kind in enumerate(kinds))
    links = (FAST, draw(st.sampled_from([FAST, SLOW])))
    return profile, Hardware(devices={"small": small, "large": large}, seats=seats, links=links)


def needs(profile: ModelProfile, hardware: Hardware, plan: Plan) -> dict[int, float]:
    """Bytes of each worker of a plan, reckoned for the worker itself and not for the group that it is in."""
    edges, found = stage_edges(profile, plan), Counter[int]()
    shares = plan.shares or (1 / plan.data,) * plan.data
    for stage in range(plan.pipeline):
        for replica, share in enumerate(shares):
            for part in range(plan.tensor):
                worker = plan.worker(stage, replica, part)
                device, samples = hardware.device(worker), share * profile.batch_size
                sums = layer_sums(profile, device, 1.0, samples / plan.microbatches, plan.tensor, FAST, plan.recompute)
                held = [
                    stage_bytes(profile, plan, sums, edges[at], edges[at + 1], stage)
                    for at in range(stage, plan.stages, plan.pipeline)
                ]
                found[worker] = sum(held) + handover_bytes(profile, plan, device)
    return dict(found)


@quick
@given(mixtures())
def test_no_candidate_needs_more_memory_than_any_of_its_workers_has(case: tuple[ModelProfile, Hardware]) -> None:
    profile, hardware = case
    for one in candidates(profile, hardware):
        if one.fits:
            for worker, size in needs(profile, hardware, one.plan).items():
                assert size <= USABLE * hardware.device(worker).memory_bytes + 1, (one.plan.id, worker)


@quick
@given(mixtures())
def test_a_tensor_group_costs_the_same_whoever_comes_first(case: tuple[ModelProfile, Hardware]) -> None:
    profile, hardware = case
    for one in search(profile, hardware):
        plan = one.plan
        if plan.tensor == plan.workers_used > 1:
            for members in permutations(plan.members or range(plan.tensor)):
                turned = estimate(profile, Topology(hardware), msgspec.structs.replace(plan, members=members))
                assert (turned.fits, turned.memory_bytes) == (one.fits, one.memory_bytes)
                assert turned.step_s == pytest.approx(one.step_s)


@pytest.mark.parametrize("types", [("a100", "t4"), ("t4", "a100")])
def test_what_does_not_fit_the_smaller_card_is_not_split_over_both(types: tuple[str, str]) -> None:
    found = [one for one in candidates(LARGE, pair(*types)) if one.plan.tensor == 2 and one.fits]
    assert all(one.memory_bytes <= USABLE * known_device("t4").memory_bytes for one in found)


def test_one_process_sits_on_the_fastest_device() -> None:
    hardware = cluster_of([(1, 8, "t4"), (1, 8, "a100")])
    medium = Transformer(12, hidden=768, heads=12, sequence=512).profile(64)
    alone = next(one for one in candidates(medium, hardware, keep=1) if one.plan.workers_used == 1)
    assert hardware.seats[(alone.plan.members or (0,))[0]].device == "a100"


def test_one_process_sits_where_it_fits_even_if_another_device_is_faster() -> None:
    swift = msgspec.structs.replace(CPU, name="swift", flops_per_s={"float32": 500e9}, memory_bytes=1e7)
    hardware = Hardware(
        devices={"cpu": CPU, "swift": swift}, seats=(Seat("swift", "a"), Seat("cpu", "b")), links=(SLOW,)
    )
    alone = next(one for one in candidates(model(), hardware) if one.plan.workers_used == 1)
    assert alone.fits and alone.plan.members == (1,)


def test_a_group_is_in_nothing_better_than_its_worst_device() -> None:
    both = weakest_device([known_device("a100"), known_device("t4")])
    t4, a100 = known_device("t4"), known_device("a100")
    assert both.memory_bytes == min(t4.memory_bytes, a100.memory_bytes)
    for dtype in {*t4.flops_per_s, *a100.flops_per_s}:
        assert both.flops(dtype) <= min(t4.flops(dtype), a100.flops(dtype))
    assert both.launch_s == max(t4.launch_s, a100.launch_s)
    assert weakest_device([t4, t4]) == t4
