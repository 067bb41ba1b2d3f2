"""Deadlines on shares that are no whole devices: promised where turns within the share keep them, and else not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.market import Market
from fairlead.scheduling.market.deadline_agenda import Agenda, GangSizes, QueueTiers, Task, reserve_in_turns
from fairlead.scheduling.market.deadlines import time_edges
from fairlead.scheduling.state import ClusterState, JobState, Preempt, Resize, Start, TenantState

SINGLE = (GangSizes((1,), (1.0,), (0,)),)
PAIR = (GangSizes((2,), (2.0,), (0,)),)


def planned(
    share: float, saved: float, tasks: list[tuple[tuple[GangSizes, ...], float, float]], others: int = 9
) -> list[bool]:
    """Which of these (gangs, work, deadline) a queue of this share, beside others of the same, can promise now."""
    devices = share * (others + 1)
    shares = np.full(others + 1, share)
    ends = time_edges(0.0, 5.0, np.array([due for _, _, due in tasks]))
    agenda = Agenda(ends, devices, QueueTiers(shares, np.full(others + 1, -1)), 1.0, (), np.full(others + 1, saved))
    made = [Task(at, 0, gang, work, due) for at, (gang, work, due) in enumerate(tasks)]
    found = {task.job: taken for task, taken in agenda.planned(made)}
    return [found[at] is not None and bool(found[at].devices.any()) for at in range(len(tasks))]


def test_a_share_of_less_than_a_device_promises_what_one_device_does_in_that_part_of_the_time() -> None:
    assert planned(0.8, 0.0, [(SINGLE, 79.0, 100.0)]) == [True]
    assert planned(0.8, 0.0, [(SINGLE, 81.0, 100.0)]) == [False]
    assert planned(0.8, 0.0, [(SINGLE, 39.0, 100.0), (SINGLE, 40.0, 100.0)]) == [True, True]
    assert planned(0.8, 0.0, [(SINGLE, 41.0, 100.0), (SINGLE, 41.0, 100.0)]) == [True, False]


def test_what_a_queue_has_saved_up_can_be_promised_and_what_it_has_overdrawn_cannot() -> None:
    assert planned(0.5, 10.0, [(SINGLE, 59.0, 100.0)]) == [True]
    assert planned(0.5, -10.0, [(SINGLE, 41.0, 100.0)]) == [False]
    assert planned(0.5, -10.0, [(SINGLE, 39.0, 100.0)]) == [True]


def test_a_gang_larger_than_its_queues_share_is_promised_as_well() -> None:
    assert planned(0.8, 0.0, [(PAIR, 79.0, 100.0)]) == [True]
    assert planned(0.8, 0.0, [(PAIR, 81.0, 100.0)]) == [False]


def test_what_would_have_to_be_done_sooner_than_it_is_due_is_not_promised() -> None:
    assert planned(0.5, 0.0, [(SINGLE, 11.0, 20.0), (SINGLE, 30.0, 200.0)]) == [False, True]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_what_is_reserved_in_turns_is_never_more_than_what_has_come_by_then(seed: int) -> None:
    rng = np.random.default_rng(seed)
    seconds = rng.choice([1.0, 5.0, 20.0], int(rng.integers(1, 12)))
    share, saved = rng.uniform(0.1, 3.0), rng.uniform(-30.0, 30.0)
    before = saved + share * np.cumsum(seconds)
    slack, rows = before.copy(), {0: [rng.integers(0, 5, len(seconds)).astype(float).tolist()]}
    free = np.array(rows[0][0])
    for _ in range(4):
        sizes = sorted({int(size) for size in rng.integers(1, 5, 3)})
        option = GangSizes(sizes, [size**0.9 for size in sizes], list(range(len(sizes))))
        many = int(rng.integers(1, len(seconds) + 1))
        taken = reserve_in_turns((option,), float(rng.uniform(1.0, 60.0)), seconds[:many], slack, rows, 4)
        if taken is not None:
            assert len(taken.devices) == many
            assert set(np.unique(taken.devices).tolist()) <= {0, *sizes}
            assert (taken.column >= 0) == bool(taken.devices[0])
            free[:many] -= taken.devices
        late = np.nonzero(before - slack > 1e-6)[0]  # once something is reserved, it is within what has come
        assert (slack[late] >= -1e-6).all()
        assert (free >= 0).all()


# ---------------------------------------------------------------- the market


def job(name: str, tenant: str, **facts: Any) -> JobState:
    facts.setdefault("work_left", 1e4)
    return replace(JobState(name, tenant, 0.0, curve=SpeedCurve((1,), {"cpu": ((1.0,), (1.0,))})), **facts)


@pytest.mark.parametrize("takes_s", [20.0, 50.0])
def test_ten_tenants_on_eight_devices_each_keep_a_deadline_that_their_shares_allow(takes_s: float) -> None:
    """Each is due 0.8 devices: on whole devices none of them could be promised anything."""
    names = [f"t{at}" for at in range(10)]
    jobs = [job(f"{name}-{at}", name) for name in names for at in range(3)]
    due_s = 2.0 * takes_s / 0.8 + 10.0
    jobs += [job(f"due-{name}", name, work_left=takes_s, finish_by_s=due_s) for name in names]
    nodes, memory, done = [Node(f"n{at}", {DEVICE: 1.0}) for at in range(8)], {}, {}
    for now_s in np.arange(0.0, due_s + 5.0, 5.0).tolist():
        made = Market()(ClusterState(now_s, nodes, [TenantState(name) for name in names], jobs, memory=memory,
                                     round_s=5.0, at_once=True))  # fmt: skip
        memory = dict(made.memory)
        sits = {one.job: one.seats for one in made.decisions if isinstance(one, Start | Resize)}
        sits |= {one.job: () for one in made.decisions if isinstance(one, Preempt)}
        jobs = [replace(one, seats=sits[one.id], since_s=now_s) if one.id in sits else one for one in jobs]
        jobs = [replace(one, work_left=one.work_left - 5.0, work_done=one.work_done + 5.0) if one.seats else one
                for one in jobs]  # fmt: skip
        done |= {one.id: now_s + 5.0 for one in jobs if one.work_left <= 0}
        jobs = [one for one in jobs if one.work_left > 0]
    late = {name for name in names if done.get(f"due-{name}", np.inf) > due_s}
    assert not late
