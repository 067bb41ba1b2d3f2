"""Live, a job that outranks a gang of its own tenant has its devices at once, and says whose they were."""

from __future__ import annotations

import pytest

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.decide import decide
from fairlead.scheduling.market_targets import LONGEST_WAIT_S, LONGEST_WAIT_TURN_S
from fairlead.scheduling.state import ClusterState, Hold, JobState, Preempt, TenantState

from .clusters import apply, job, nodes, state, tenants

NOW_S = 100.0


def round_with(priority: int, restart_cost_s: float = 5.0) -> dict[str, Preempt | Hold]:
    """A short gang that has just begun on the only device, and a long job of its tenant that waits."""
    sits = JobState(
        "sits", "a", 90.0, seats=("n0",), since_s=NOW_S - 1.0, facts={"takes_s": 8.0}, restart_cost_s=restart_cost_s
    )
    waits = JobState("waits", "a", NOW_S, since_s=NOW_S, priority=priority, facts={"takes_s": 1e6}, restart_cost_s=5.0)
    state = ClusterState(NOW_S, [Node("n0", {DEVICE: 1.0})], [TenantState("a")], [sits, waits])
    return {one.job: one for one in decide(state).decisions if isinstance(one, Preempt | Hold)}


def test_who_outranks_a_young_gang_of_its_tenant_has_its_devices_however_little_it_bids() -> None:
    assert isinstance(round_with(1).get("sits"), Preempt)
    assert "sits" not in round_with(0)


def test_who_outranks_has_its_devices_also_where_stopping_the_gang_costs_more_than_it_has_left() -> None:
    assert isinstance(round_with(1, restart_cost_s=300.0).get("sits"), Preempt)
    assert "sits" not in round_with(0, restart_cost_s=300.0)


def test_who_waits_for_seats_that_are_being_left_is_told_by_whom() -> None:
    hold = round_with(10)["waits"]
    assert "sits" in hold.reason.text or "sits" in str(hold.reason.facts), hold.reason


def course(waited_s: float, *, siblings: int = 0, seconds: int = 200) -> list[tuple[str, ...]]:
    """Which jobs run, second by second: one of high priority runs, one of low priority has waited for so long."""
    low = job("low", submitted_s=1000.0 - waited_s, since_s=1000.0 - waited_s, weight=0.2)
    high = job("high", seats=("node-0",), priority=5, submitted_s=0.0)
    others = [job(f"other-{at}", seats=(f"node-{at + 1}",), submitted_s=500.0) for at in range(siblings)]
    now = state([high, low, *others], nodes=nodes(1 + siblings), tenants=tenants(a=1), now_s=1000.0)
    seen = []
    for _ in range(seconds):
        seen.append(tuple(one.id for one in now.jobs if one.seats))
        now = apply(now, decide(now), wait_s=1.0)
    return seen


@pytest.mark.parametrize("siblings", [0, 1, 2])
def test_a_job_that_waited_longest_has_its_turn_also_against_a_job_of_higher_priority(siblings: int) -> None:
    seen = course(LONGEST_WAIT_S, siblings=siblings)
    begins = next(at for at, running in enumerate(seen) if "low" in running)
    assert begins <= 3, "the device is given up for it and not taken back"
    turn = seen[begins : begins + int(LONGEST_WAIT_TURN_S)]
    assert all("low" in running for running in turn)
    assert len(set(turn)) <= 2, "nobody takes turns with its siblings meanwhile"
    assert all("high" in running for running in seen[begins + int(LONGEST_WAIT_TURN_S) + 5 :])


def test_a_job_that_has_waited_a_little_less_has_no_turn_yet() -> None:
    assert set(course(LONGEST_WAIT_S - 10.0, seconds=9)) == {("high",)}


def running_after(jobs: list[JobState], seconds: int = 30, **fields: object) -> list[set[str]]:
    """Which jobs run, second by second."""
    now = state(jobs, now_s=1000.0, **fields)
    seen = []
    for _ in range(seconds):
        now = apply(now, decide(now), wait_s=1.0)
        seen.append({one.id for one in now.jobs if one.seats})
    return seen


def test_a_job_between_two_of_its_tenant_takes_the_devices_of_the_lower_one_only() -> None:
    high, low = (job(name, seats=(seat,), priority=by, submitted_s=0.0)
                 for name, seat, by in (("high", "node-0", 5), ("low", "node-1", 0)))  # fmt: skip
    middle = job("middle", priority=3, submitted_s=990.0, since_s=990.0)
    seen = running_after([high, low, middle], nodes=nodes(2), tenants=tenants(a=1))
    assert all("high" in running for running in seen) and seen[-1] == {"high", "middle"}


def test_a_priority_keeps_no_devices_from_another_tenant_that_is_entitled_to_them() -> None:
    running = [job(f"high-{at}", "a", seats=(f"node-{at}",), priority=5, submitted_s=0.0) for at in range(2)]
    seen = running_after([*running, job("new", "b", submitted_s=999.0)], nodes=nodes(2), tenants=tenants(a=1, b=1))
    assert "new" in seen[-1] and len(seen[-1]) == 2


def test_a_free_device_goes_to_a_waiting_job_whatever_the_priority_of_those_that_run() -> None:
    high = job("high", seats=("node-0",), priority=10, submitted_s=0.0)
    seen = running_after([high, job("low", submitted_s=999.0)], nodes=nodes(2), tenants=tenants(a=1))
    assert seen[-1] == {"high", "low"} and all("high" in running for running in seen)
