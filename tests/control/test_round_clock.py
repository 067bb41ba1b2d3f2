"""When a round is due: only things that matter ask for one at once, and time for the others."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.cluster import DEVICE, Node
from fairlead.control.reconcile.round_clock import EVERY_S, LONGEST_WAITING_S, RoundClock
from fairlead.scheduling.state import ClusterState, Decision, JobState, Reason, Start, TenantState

NODE = Node("node-0", {"cpu": 4.0, DEVICE: 4.0})


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


def held(*jobs: JobState, decisions: tuple[Decision, ...] = (), changed: tuple[str, ...] = ()) -> RoundClock:
    """A clock for which a round about these jobs was just held."""
    clock = RoundClock(Clock())
    clock.round_started()
    clock.round_finished(ClusterState(1000.0, [NODE], [TenantState("vision")], jobs), decisions, changed, cost_s=0.001)
    return clock


def a_job(name: str, seats: int, most: int) -> JobState:
    return JobState(name, "vision", submitted_s=1.0, min_workers=1, max_workers=most, seats=("node-0",) * seats)


def test_the_first_round_is_due_at_once() -> None:
    assert RoundClock(Clock()).due


def test_devices_that_come_free_matter_at_once_only_if_a_job_could_use_them() -> None:
    clock = held(a_job("grows", 1, 2))
    clock.devices_freed()
    assert clock.due
    clock = held(a_job("full", 2, 2))
    clock.devices_freed()
    assert not clock.due


def test_a_job_that_was_given_all_that_it_may_have_is_not_hungry() -> None:
    start = Start("waits", ("node-0",), Reason("fits", "it fits"))
    clock = held(a_job("waits", 0, 1), decisions=(start,), changed=("waits",))
    clock.devices_freed()
    assert not clock.due
    clock = held(a_job("waits", 0, 1), decisions=(start,))
    clock.devices_freed()
    assert clock.due and clock.unfinished, "its start could not be stored: what comes free may be for it"


def test_what_nobody_could_use_is_decided_about_soon() -> None:
    clock = held(a_job("full", 2, 2))
    clock.devices_freed()
    assert clock.limit_wait(60.0) == EVERY_S
    time = clock._clock
    assert isinstance(time, Clock)
    time.now_s += EVERY_S
    clock.tick(busy=False)
    assert clock.due
    clock.round_started()
    assert not clock.due and clock.limit_wait(60.0) == 60.0


def test_time_alone_asks_while_anything_is_on_its_way() -> None:
    clock = held(a_job("full", 2, 2))
    time = clock._clock
    assert isinstance(time, Clock)
    time.now_s += EVERY_S + 0.1
    clock.tick(busy=False)
    assert not clock.due
    clock.tick(busy=True)
    assert clock.due


def test_a_round_that_takes_long_comes_less_often_but_often_enough() -> None:
    start = Start("waits", ("node-0",), Reason("fits", "it fits"))
    clock = RoundClock(Clock())
    clock.round_started()
    state = ClusterState(1000.0, [NODE], [TenantState("vision")], [a_job("waits", 0, 1)])
    clock.round_finished(state, (start,), (), cost_s=1.0)
    time = clock._clock
    assert isinstance(time, Clock)
    time.now_s += LONGEST_WAITING_S - 0.1
    clock.tick(busy=True)
    assert not clock.due
    time.now_s += 0.2
    clock.tick(busy=True)
    assert clock.due and clock.pause_s == 0.5
