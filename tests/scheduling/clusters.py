"""Clusters to schedule in tests: short builders, hypothesis strategies, and a virtual backend that obeys each round."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node, NodeState
from fairlead.scheduling.live_round import live_round
from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.policy import DEFAULT_CONFIG
from fairlead.scheduling.state import ClusterState, Decision, Hold, JobState, Preempt, Resize, Round, Start, TenantState


def nodes(count: int = 4, devices: int = 1, **fields: Any) -> list[Node]:
    capacity = {"cpu": float(devices), "memory": 4e9 * devices, DEVICE: float(devices)}
    return [Node(f"node-{i}", capacity, **fields) for i in range(count)]


def tenants(**weights: float) -> list[TenantState]:
    return [TenantState(name, weight) for name, weight in weights.items()]


def job(name: str, tenant: str = "a", workers: tuple[int, int] = (1, 1), **fields: Any) -> JobState:
    low, high = workers
    fields.setdefault("elastic", high > low)
    fields.setdefault("submitted_s", 0.0)
    return JobState(name, tenant, min_workers=low, max_workers=high, **fields)


def state(jobs: list[JobState], *, now_s: float = 100.0, **fields: Any) -> ClusterState:
    fields.setdefault("nodes", nodes())
    fields.setdefault("tenants", tenants(a=1, b=1))
    return ClusterState(now_s, jobs=jobs, **fields)


def by_job(round_: Round) -> dict[str, Decision]:
    assert len({d.job for d in round_.decisions}) == len(round_.decisions), "at most one decision per job"
    return {decision.job: decision for decision in round_.decisions}


def apply(before: ClusterState, round_: Round, *, wait_s: float = 0.0) -> ClusterState:
    """The cluster once everything the round says has been carried out, some time later."""
    decided = by_job(round_)
    now_s = before.now_s + wait_s
    jobs = [_after(one, decided.get(one.id), before.now_s) for one in before.jobs]
    return replace(before, now_s=now_s, jobs=jobs, memory=round_.memory)


def _after(one: JobState, decision: Decision | None, now_s: float) -> JobState:
    match decision:
        case Start() | Resize():
            return replace(one, seats=decision.seats, since_s=now_s, broken=False)
        case Preempt():
            return replace(one, seats=(), since_s=now_s, broken=False)
        case _:
            return one


def used_on_nodes(after: ClusterState) -> dict[str, Counter[str]]:
    taken: dict[str, Counter[str]] = {node.name: Counter() for node in after.nodes}
    for one in after.jobs:
        for seat in one.seats:
            for resource, amount in one.need.items():
                taken[seat][resource] += amount  # type: ignore[assignment]
    return taken


def overfull(after: ClusterState) -> list[str]:
    """Every resource on every node of which more is used than there is."""
    taken = used_on_nodes(after)
    return [
        f"{node.name} {resource}: {amount} of {node.capacity.get(resource, 0.0)}"
        for node in after.nodes
        for resource, amount in taken[node.name].items()
        if amount > node.capacity.get(resource, 0.0) + 1e-6
    ]


def used_by_tenant(after: ClusterState) -> Counter[str]:
    return Counter({t.name: 0 for t in after.tenants}) + Counter(j.tenant for j in after.jobs for _ in j.seats)


def changes(round_: Round) -> list[Decision]:
    return [decision for decision in round_.decisions if not isinstance(decision, Hold)]


class SlowBackend:
    """Carries decisions out over several rounds: a job that changes settles first and holds old and new seats."""

    def __init__(self, now: ClusterState, takes: int, config: MarketConfig = DEFAULT_CONFIG) -> None:
        self.now, self.takes, self.config = now, takes, config
        self.pending: dict[str, tuple[int, tuple[str, ...]]] = {}
        self.jobs_making_room: Counter[str] = Counter()

    def round(self, wait_s: float) -> list[Decision]:
        """What changes when the next round is held after this time."""
        self.now = replace(self.now, now_s=self.now.now_s + wait_s)
        round_ = live_round(self.now, self.config)
        decided = by_job(round_)
        self.pending = {name: (left - 1, seats) for name, (left, seats) in self.pending.items()}
        jobs = []
        for one in self.now.jobs:
            decision = decided.get(one.id)
            assert decision is None or not one.frozen
            if isinstance(decision, Start | Resize | Preempt):
                after = () if isinstance(decision, Preempt) else decision.seats
                self.pending[one.id] = (self.takes, after)
                self.jobs_making_room[one.id] += decision.reason.code == "make-room"
                both = tuple((Counter(one.seats) | Counter(after)).elements())
                leaving = tuple((Counter(one.seats) - Counter(after)).elements())
                one = replace(one, seats=both, frozen=True, broken=False, leaving=leaving)
            elif one.id in self.pending and self.pending[one.id][0] <= 0:
                seats = self.pending.pop(one.id)[1]
                one = replace(one, seats=seats, frozen=False, since_s=self.now.now_s, leaving=())
            jobs.append(one)
        self.now = replace(self.now, jobs=jobs, memory=round_.memory)
        assert overfull(self.now) == []
        return changes(round_)


def calls(action: Callable[[], object]) -> int:
    """How many functions this calls: a measure of work that needs no clock, so that it is the same on any machine."""
    events: Counter[str] = Counter()
    present = sys.getprofile()
    sys.setprofile(lambda _frame, event, _arg: events.update((event,)))
    try:
        action()
    finally:
        sys.setprofile(present)
    return events["call"] + events["c_call"]


TENANTS = ("a", "b", "c")
SPEEDS: list[dict[int, float]] = [
    {}, {1: 10.0}, {1: 10.0, 2: 19.0, 3: 18.0}, {2: 20.0, 3: 29.0, 4: 10.0}, {1: 10.0, 2: 9.7, 3: 9.3, 4: 8.9},
]  # fmt: skip

EXAMPLES = int(os.environ.get("FAIRLEAD_EXAMPLES", "0"))

several = settings(
    max_examples=EXAMPLES or 100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # Without shrinking, a falsified property fails at once, with a larger example; clusters are small enough to read.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
few = settings(several, max_examples=EXAMPLES or 40)
rarely = settings(several, max_examples=EXAMPLES or 12)  # for what takes many rounds


@st.composite
def clusters(draw: st.DrawFn, *, healthy: bool = False, one_type: bool = False, max_jobs: int = 12) -> ClusterState:
    """Any cluster state that could arise: jobs sit only where there is room, some are broken or settling."""
    types = ["cpu"] if one_type else ["cpu", "gpu"]
    states = [NodeState.READY] if healthy else list(NodeState)
    pool = [
        Node(
            f"node-{i}",
            {"cpu": draw(st.sampled_from([1.0, 2.0, 4.0])), "memory": 8e9, DEVICE: float(draw(st.integers(1, 4)))},
            device_type=draw(st.sampled_from(types)),
            speed=draw(st.sampled_from([1.0, 0.97, 0.3])),
            state=draw(st.sampled_from(states + [NodeState.READY] * 3)),
        )
        for i in range(draw(st.integers(1, 5)))
    ]
    owners = [
        TenantState(
            name,
            weight=draw(st.sampled_from([0.5, 1.0, 2.0, 3.0])),
            quota=draw(st.sampled_from([None, None, None, 1, 3])),
            attained_device_s=draw(st.sampled_from([0.0, 10.0, 500.0])),
        )
        for name in TENANTS
    ]
    free = {node.name: dict(node.capacity) for node in pool}
    left = {owner.name: owner.quota for owner in owners}
    jobs = [draw(_jobs(i, pool, free, left, types, healthy)) for i in range(draw(st.integers(0, max_jobs)))]
    return ClusterState(1000.0, pool, owners, jobs)


@st.composite
def _jobs(
    draw: st.DrawFn, index: int, pool: list[Node], free: Any, left: Any, types: list[str], healthy: bool
) -> JobState:
    low = draw(st.integers(1, 3))
    high = low + draw(st.integers(0, 3))
    one = JobState(
        id=f"job-{index}",
        tenant=draw(st.sampled_from(TENANTS)),
        submitted_s=draw(st.floats(0, 999)),
        min_workers=low,
        max_workers=high,
        demand=draw(st.sampled_from([{}, {"cpu": 0.5}, {"cpu": 1.0, "memory": 2e9}])),
        device_type=draw(st.sampled_from([None, None, *types])),
        priority=draw(st.sampled_from([0, 0, 5])),
        start_by_s=draw(st.sampled_from([None, None, 900.0, 1030.0])),
        since_s=draw(st.sampled_from([0.0, 990.0, 999.0])),
        elastic=high > low and draw(st.booleans()),
        speeds=draw(st.sampled_from(SPEEDS)),
        remaining_samples=draw(st.sampled_from([None, 5.0, 10_000.0])),
    )
    if not draw(st.booleans()):
        return one
    seats = _sit_down(one, draw(st.integers(low, high)), pool, free, left)
    if not seats:
        return one
    if healthy:
        return replace(one, seats=seats)
    fate = draw(st.sampled_from(["runs", "runs", "runs", "settling", "broken"]))
    if fate == "broken":
        return replace(one, seats=seats[1:], broken=True)
    return replace(one, seats=seats, frozen=fate == "settling")


def _sit_down(one: JobState, size: int, pool: list[Node], free: Any, left: Any) -> tuple[str, ...]:
    if left[one.tenant] is not None and left[one.tenant] < size:
        return ()
    seats: list[str] = []
    trial = {name: dict(amounts) for name, amounts in free.items()}
    for node in pool:
        if node.state is NodeState.LOST or one.device_type not in (None, node.device_type):
            continue
        while len(seats) < size and all(trial[node.name].get(r, 0.0) >= a for r, a in one.need.items()):
            seats.append(node.name)
            for resource, amount in one.need.items():
                trial[node.name][resource] -= amount
    if len(seats) < size:
        return ()
    free.update(trial)
    if left[one.tenant] is not None:
        left[one.tenant] -= size
    return tuple(seats)
