"""What an exchange adds to a step: the wire or the core, whichever is slower, less what a quota gives back."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import InvalidSpec
from fairlead.planning.collectives import DIRECT_BYTES, all_reduce_s, exchange_cost_s, ring_cpu_s, sum_cpu_s, sum_wire_s
from fairlead.planning.cost import Estimate, estimate
from fairlead.planning.plan import Plan, ddp_plan
from fairlead.planning.search import search
from fairlead.planning.topology import Topology
from fairlead.training.parallel import direct_sums

from .made import CPU, SLOW, hardware, model

SENDING = msgspec.structs.replace(CPU, message_s=1e-4, byte_s=1e-9)


def test_small_sums_go_directly_as_the_workers_do_it() -> None:
    assert DIRECT_BYTES == direct_sums.MOST_BYTES
    assert sum_cpu_s(2, 1000.0, SENDING) < ring_cpu_s(2, 1000.0, SENDING)
    assert sum_cpu_s(4, 1e6, SENDING) == ring_cpu_s(4, 1e6, SENDING)
    assert sum_wire_s(2, 1000.0, SLOW, SENDING) <= all_reduce_s(2, 1000.0, SLOW)


@given(
    wire_s=st.floats(0, 1), cpu_s=st.floats(0, 1), speed=st.floats(0.05, 1), period_s=st.floats(0, 0.1),
    busy_s=st.floats(0, 1),
)  # fmt: skip
def test_waiting_is_won_back_only_while_a_quota_would_rest(
    wire_s: float, cpu_s: float, speed: float, period_s: float, busy_s: float
) -> None:
    whole = exchange_cost_s(wire_s, cpu_s, CPU, speed)
    paid = exchange_cost_s(wire_s, cpu_s, CPU, speed, period_s=period_s, busy_s=busy_s)
    assert CPU.step_s / speed + cpu_s / speed - 1e-9 <= paid <= whole + 1e-9
    assert whole - paid <= (1 - speed) * period_s + 1e-9  # no more than the rest of one period


def test_the_loop_around_a_step_is_paid_by_every_worker() -> None:
    busy = msgspec.structs.replace(CPU, loop_s=0.01)
    for plan in (Plan(members=(0,)), Plan(data=2, sync="allreduce")):
        without, with_it = (
            estimate(model(), Topology(hardware(2, device=device, speeds=(0.5, 0.5))), plan) for device in (CPU, busy)
        )
        assert with_it.step_s - without.step_s == pytest.approx(0.02)


def test_small_buckets_help_where_the_link_is_slow_and_the_model_is_not_small() -> None:
    profile, small = model(8, flops=2e8), Plan(data=2, sync="allreduce", buckets=True, bucket_bytes=1 << 20)
    slow = Topology(hardware(2, link=SLOW, device=SENDING))
    assert estimate(profile, slow, small).step_s < estimate(profile, slow, ddp_plan(2)).step_s
    assert small.id == "ddp2·1024k" and ddp_plan(2).id == "ddp"
    with pytest.raises(InvalidSpec, match="buckets"):
        Plan(data=2, sync="allreduce", bucket_bytes=1 << 20)


def by_compression(workers: int) -> dict[str, Estimate]:
    """Replicas over a slow link whose step is nearly all exchange."""
    topology = Topology(hardware(workers, link=SLOW, device=SENDING))
    plans = [Plan(data=workers, sync="allreduce", compression=each) for each in ("none", "bf16", "int8")]
    profile = model(4, flops=1e5, parameters=1_000_000, exact=False)
    return {plan.compression: estimate(profile, topology, plan) for plan in plans}


def test_gradients_as_int8_are_gathered_so_many_workers_lose_by_it() -> None:
    two, many = by_compression(2), by_compression(16)
    assert two["int8"].step_s < two["bf16"].step_s < two["none"].step_s
    assert many["int8"].step_s > many["none"].step_s > many["bf16"].step_s
    sent = 15 / 4 * 16e6  # (n - 1) / 4 of all gradients
    assert many["int8"].parts["exchange"] > sent / SLOW.bytes_per_s


def test_everybodys_gradients_as_int8_are_held_at_once() -> None:
    gradients = 16e6
    for workers in (2, 8):
        found = by_compression(workers)
        assert found["int8"].memory_bytes - found["none"].memory_bytes >= 2 * workers * gradients


def test_what_loses_by_compression_is_not_chosen() -> None:
    profile = model(4, flops=1e5, parameters=1_000_000, exact=False)
    found = search(profile, hardware(16, link=SLOW, device=SENDING), 40)
    summed = [one for one in found if one.plan.data == 16 and one.plan.sync == "allreduce"]
    assert all(one.plan.compression != "int8" for one in summed[:1])
