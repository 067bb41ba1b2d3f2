"""Live, a job that outranks a gang of its own tenant has its devices at once, and says whose they were."""

from __future__ import annotations

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.decide import decide
from fairlead.scheduling.state import ClusterState, Hold, JobState, Preempt, TenantState

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
