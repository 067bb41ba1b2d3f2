"""Trees of tenants have what a list of them has: deadlines on own shares first, whole devices, guarantees for gangs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling import decide
from fairlead.scheduling.market.deadline_agenda import Agenda, GangSizes, QueueTiers, Task
from fairlead.scheduling.market.deadlines import time_edges
from fairlead.scheduling.market.fairness_over_time import budgets_by_tier, fit_budgets, in_whole_devices
from fairlead.scheduling.market.menus import Floats, Ints
from fairlead.scheduling.state import ClusterState, Hold, JobState, Round, Start, TenantState

from .clusters import apply, few, several

GUARDED = 0.75
NOTHING = np.zeros(0, dtype=np.int64)


def tasks_of(rng: np.random.Generator, queues: list[int], ends_s: Floats) -> list[Task]:
    """Jobs with deadlines, some of them tight, of these queues."""
    found = []
    for job in range(int(rng.integers(0, 14))):
        sizes = np.sort(rng.choice([1, 2, 4, 8], int(rng.integers(1, 4)), replace=False))
        option = GangSizes(sizes, sizes ** rng.uniform(0.5, 1.0), np.arange(len(sizes)))
        work = float(rng.lognormal(5.0, 1.5))
        found.append(Task(job, int(rng.choice(queues)), [option], work, float(rng.choice(ends_s))))
    return found


def forest_of(rng: np.random.Generator) -> tuple[QueueTiers, list[int], float]:
    """Shares of up to two tiers that add up, who stands at the bottom, and all devices."""
    devices, shares, above = float(rng.integers(4, 40)), [], []
    for part in rng.dirichlet(np.ones(int(rng.integers(2, 4)))).tolist():
        shares.append(devices * part)
        above.append(-1)
    for parent in range(len(above)):
        if rng.random() < 0.6:
            for part in rng.dirichlet(np.ones(int(rng.integers(2, 4)))).tolist():
                shares.append(shares[parent] * part)
                above.append(parent)
    return QueueTiers(np.array(shares), np.array(above)), [at for at in range(len(above)) if at not in above], devices


def below(tiers: QueueTiers, queue: int) -> set[int]:
    found = {queue}
    for at, parent in enumerate(tiers.above.tolist()):
        if parent in found:
            found.add(at)
    return found


def stretches(rng: np.random.Generator) -> Floats:
    return time_edges(0.0, 60.0, np.sort(rng.uniform(60.0, 4_000.0, int(rng.integers(1, 8)))))


def planned(agenda: Agenda, tasks: list[Task]) -> list[Ints | None]:
    return [None if taken is None else taken.devices for _, taken in agenda.planned(tasks)]


@several
@given(st.integers(0, 2**32 - 1))
def test_deadlines_leave_every_queue_the_guarded_part_of_its_share(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tiers, leaves, devices = forest_of(rng)
    edges_s = stretches(rng)
    tasks = tasks_of(rng, leaves, edges_s[1:])
    taken = {task.job: found for task, found in Agenda(edges_s, devices, tiers, GUARDED).planned(tasks)}
    for queue in range(len(tiers.above)):
        inside, others = below(tiers, queue), np.zeros(len(edges_s) - 1)
        for task in tasks:
            found = taken[task.job]
            if found is not None and task.group not in inside:
                others[: len(found.devices)] += found.devices
        assert (others <= devices - GUARDED * tiers.entitled[queue] + 1e-6).all()


@several
@given(st.integers(0, 2**32 - 1))
def test_who_makes_its_deadline_on_its_own_share_depends_on_nobody_else(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tiers, leaves, devices = forest_of(rng)
    edges_s = stretches(rng)
    tasks = tasks_of(rng, leaves, edges_s[1:])
    for leaf in leaves:
        own = [task for task in tasks if task.group == leaf]
        alone = Agenda(edges_s, float(tiers.entitled[leaf]), None, GUARDED).planned(own)
        together = {task.job: found for task, found in Agenda(edges_s, devices, tiers, GUARDED).planned(tasks)}
        for task, found in alone:
            if found is not None:
                other = together[task.job]
                assert other is not None and np.array_equal(other.devices, found.devices)


@several
@given(st.integers(0, 2**32 - 1))
def test_a_list_of_tenants_below_one_organisation_is_planned_as_the_list_itself(seed: int) -> None:
    rng = np.random.default_rng(seed)
    devices, edges_s = float(rng.integers(4, 40)), stretches(rng)
    shares = rng.dirichlet(np.ones(int(rng.integers(2, 5)))) * devices
    tasks = tasks_of(rng, list(range(len(shares))), edges_s[1:])
    lower = [replace(task, group=task.group + 1) for task in tasks]
    tree = QueueTiers(np.append(devices, shares), np.array([-1] + [0] * len(shares)))
    flat = planned(Agenda(edges_s, devices, QueueTiers(shares, np.full(len(shares), -1)), GUARDED), tasks)
    for one, other in zip(flat, planned(Agenda(edges_s, devices, tree, GUARDED), lower), strict=True):
        assert np.array_equal(NOTHING if one is None else one, NOTHING if other is None else other)


@several
@given(st.integers(0, 2**32 - 1))
def test_those_below_a_queue_have_together_the_whole_devices_that_it_has(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tiers, _, devices = forest_of(rng)
    used = rng.integers(0, 5, len(tiers.above)).astype(np.float64)
    budget = budgets_by_tier(tiers.entitled, tiers.entitled, used, tiers.above, devices, 0.03)
    assert (budget == np.round(budget)).all() and (np.abs(budget - tiers.entitled) < len(tiers.above)).all()
    assert budget[tiers.above == -1].sum() == pytest.approx(devices)
    for parent in set(tiers.above.tolist()) - {-1}:
        assert budget[tiers.above == parent].sum() == budget[parent]


@several
@given(st.integers(0, 2**32 - 1))
def test_a_list_of_tenants_has_the_budgets_it_always_had(seed: int) -> None:
    rng = np.random.default_rng(seed)
    entitled = rng.uniform(0.0, 9.0, int(rng.integers(1, 6)))
    budget = np.maximum(0.0, entitled + rng.normal(0.0, 2.0, len(entitled)))
    used, devices = rng.integers(0, 9, len(entitled)).astype(np.float64), float(np.ceil(entitled.sum()))
    flat = in_whole_devices(fit_budgets(budget, entitled, devices, 0.03), used, float(entitled.sum()))
    assert np.array_equal(budgets_by_tier(budget, entitled, used, np.full(len(entitled), -1), devices, 0.03), flat)


def cluster(devices: int) -> list[Node]:
    return [Node(f"node-{at:02d}", {DEVICE: 1.0}, "v100") for at in range(devices)]


def rigid(name: str, tenant: str, size: int, **fields: object) -> JobState:
    return replace(JobState(name, tenant, 0.0, size, size), **fields)  # type: ignore[arg-type]


def rounds(state: ClusterState, many: int) -> tuple[ClusterState, Round]:
    wait_s, made = state.round_s or 5.0, decide(state)
    for _ in range(many - 1):
        state = apply(state, made, wait_s=wait_s)
        made = decide(state)
    return apply(state, made, wait_s=wait_s), made


@few
@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 4), st.booleans(), st.booleans())
def test_a_gang_within_a_guarantee_starts(guaranteed: int, used: int, more: int, tree: bool, live: bool) -> None:
    used = min(used, guaranteed - 1)
    parent = TenantState("lab", 0.1, guarantee={"v100": float(guaranteed)})
    teams = [parent, TenantState("a", parent="lab"), TenantState("b", parent="lab")] if tree else [parent]
    own, other = ("a", "b") if tree else ("lab", "lab")
    small = [rigid(f"small-{at}", other, 1, work_left=9e5) for at in range(used)]
    rich = [rigid(f"rich-{at:02d}", "rich", 1, priority=9, work_left=60.0) for at in range(20)]
    state = ClusterState(1_000.0, cluster(guaranteed + more), [*teams, TenantState("rich", 50.0)], [*small, *rich],
                         round_s=None if live else 60.0, at_once=not live)  # fmt: skip
    state, _ = rounds(state, 6)
    state, _ = rounds(replace(state, jobs=[*state.jobs, rigid("gang", own, guaranteed - used, work_left=9e5)]), 8)
    assert all(job.seats for job in state.jobs if job.tenant != "rich")


def test_what_is_guaranteed_of_a_larger_gang_is_kept_for_it_and_the_rest_is_borrowed() -> None:
    teams = [TenantState("sure", 0.1, guarantee={"v100": 2.0}), TenantState("rich", 10.0)]
    rich = [rigid(f"rich-{at}", "rich", 4, work_left=60.0) for at in range(3)]
    state = ClusterState(0.0, cluster(9), teams, [*rich, rigid("gang", "sure", 5, work_left=9e5)], at_once=True)
    after, made = rounds(replace(state, round_s=60.0), 1)
    assert {job.id for job in after.jobs if job.seats} >= {"gang"}
    assert any(isinstance(one, Start) and one.job == "gang" for one in made.decisions)


@pytest.mark.parametrize("live", [False, True])
def test_a_gang_that_is_larger_than_what_is_left_of_a_guarantee_is_told_so(live: bool) -> None:
    teams = [TenantState("sure", 0.1, guarantee={"v100": 3.0}), TenantState("rich", 50.0)]
    rich = [rigid(f"rich-{at:02d}", "rich", 1, work_left=9e5, seats=(f"node-{at:02d}",)) for at in range(15)]
    jobs = [*rich, rigid("gang", "sure", 4, work_left=9e5)]
    state = ClusterState(1_000.0, cluster(16), teams, jobs, round_s=None if live else 60.0, at_once=not live)
    (told,) = [one for one in decide(state).decisions if isinstance(one, Hold) and one.job == "gang"]
    expected = "3 of the 3 devices of type v100 guaranteed to sure are unused, fewer than its gang of 4"
    assert expected in told.reason.text and "it would have to borrow 1" in told.reason.facts["not_guaranteed"]


def test_a_deadline_of_a_team_is_kept_by_what_its_own_organisation_can_spare_first() -> None:
    teams = [
        TenantState("vision"), TenantState("text"), TenantState("alice", parent="vision"),
        TenantState("bob", parent="vision"),
    ]  # fmt: skip
    busy = [rigid(f"{name}-{at}", name, 1, work_left=9e5) for name in ("bob", "text") for at in range(16)]
    due = [rigid(f"due-{at}", "alice", 1, work_left=345.0, finish_by_s=1_360.0) for at in range(5)]
    state = ClusterState(1_000.0, cluster(16), teams, [*busy, *due], round_s=60.0, at_once=True)
    after, _ = rounds(state, 1)
    held = {name: sum(bool(job.seats) for job in after.jobs if job.tenant == name) for name in ("alice", "bob", "text")}
    assert held == {"alice": 5, "bob": 3, "text": 8}


@several
@given(st.integers(0, 2**32 - 1))
def test_deadlines_never_count_on_more_devices_of_a_type_than_there_are(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tiers, leaves, devices = forest_of(rng)
    edges_s, fast = stretches(rng), float(rng.integers(1, int(devices)))
    capacity, kinds = [fast, devices - fast], rng.integers(0, 2, 20)
    tasks = [replace(task, size_options=[replace(one, kind=int(kinds[task.job])) for one in task.size_options])
             for task in tasks_of(rng, leaves, edges_s[1:])]  # fmt: skip
    taken = np.zeros((2, len(edges_s) - 1))
    for task, found in Agenda(edges_s, devices, tiers, GUARDED, capacity).planned(tasks):
        if found is not None:
            taken[kinds[task.job], : len(found.devices)] += found.devices
    assert (taken <= np.array(capacity)[:, None] + 1e-6).all()


def test_a_deadline_is_planned_on_the_type_that_has_room_and_on_both_in_turn_where_only_that_makes_it() -> None:
    edges_s = np.array([0.0, 100.0, 200.0])
    fast, slow = GangSizes([1], [1.0], [0], kind=0), GangSizes([1], [0.5], [1], kind=1)
    tasks = [Task(0, 0, [fast], 100.0, 100.0), Task(1, 0, [fast, slow], 50.0, 100.0),
             Task(2, 0, [fast, slow], 150.0, 200.0), Task(3, 0, [fast], 150.0, 200.0)]  # fmt: skip
    found = [taken for _, taken in Agenda(edges_s, 3.0, None, GUARDED, [1.0, 2.0]).planned(tasks)]
    assert [None if one is None else (one.devices.tolist(), one.column) for one in found] == [
        ([1], 0), ([1], 1), ([1, 1], 1), None,
    ]  # fmt: skip
