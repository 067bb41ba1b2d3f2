"""Promises push others aside only as far as their tenant's own share could keep them."""

from __future__ import annotations

from dataclasses import replace

from fairlead.scheduling.decide import decide
from fairlead.scheduling.promise_budgets import TURN_S, affordable_jobs, promise_savings, savings_memory
from fairlead.scheduling.state import JobState, Preempt

from .clusters import by_job, job, nodes, state

NOW_S = 100.0


def bound(name: str, takes_s: float, ahead_s: float, tenant: str = "a", size: int = 1, **more: object) -> JobState:
    facts = {"takes_s": takes_s}
    return job(name, tenant, (size, size), finish_by_s=NOW_S + ahead_s, facts=facts, **more)


def test_a_tenant_saves_up_for_promises_at_most_one_turn_of_its_largest_gang() -> None:
    jobs = [job("j"), job("k", "b", (2, 2))]
    assert promise_savings(jobs, {}, NOW_S) == {"a": 0.0, "b": 0.0}
    memory = {"promised": {"a": (10.0, 0.5), "b": (5.0, 9.0)}, "at_s": NOW_S - 20.0}
    assert promise_savings(jobs, memory, NOW_S) == {"a": 20.0, "b": 2 * TURN_S}
    owes = {"promised": {"a": (-10.0, -0.5)}, "at_s": NOW_S - 3_600.0}
    assert promise_savings(jobs, owes, NOW_S) == {"a": -TURN_S, "b": 0.0}, "nobody looked for an hour"
    assert promise_savings(jobs, {**memory, "at_s": NOW_S + 50.0}, NOW_S) == {"a": 10.0, "b": 5.0}, (
        "no time runs backwards"
    )


def test_only_jobs_with_a_deadline_draw_on_it_and_those_by_their_smallest_gang() -> None:
    elastic = replace(bound("e", 30.0, 60.0), max_workers=4)
    found = savings_memory([elastic, job("free")], {"a": 7.0}, {"a": 1.5}, {"e": 3, "free": 2})
    assert found == {"a": (7.0, 0.5)}


def test_the_earliest_deadlines_that_a_share_can_keep_are_affordable() -> None:
    jobs = [bound("late", 30.0, 120.0), bound("early", 30.0, 60.0), job("free")]
    assert affordable_jobs(jobs, {"a": 0.0}, {"a": 0.5}, (), NOW_S) == {"early", "late"}
    assert affordable_jobs(jobs, {"a": -10.0}, {"a": 0.5}, (), NOW_S) == {"late"}
    assert affordable_jobs(jobs, {"a": 10.0}, {"a": 0.4}, (), NOW_S) == {"early"}
    assert affordable_jobs(jobs, {"a": 30.0}, {}, (), NOW_S) == {"early"}


def test_a_promise_that_is_being_kept_stays_so_when_the_share_gets_smaller() -> None:
    jobs = [bound("runs", 50.0, 90.0, seats=("node-0",), since_s=NOW_S), bound("new", 5.0, 60.0)]
    assert affordable_jobs(jobs, {"a": 0.0}, {"a": 0.2}, ("runs",), NOW_S) == {"runs", "new"}
    assert affordable_jobs(jobs, {"a": 0.0}, {"a": 0.2}, (), NOW_S) == {"new"}


def test_a_promise_beyond_its_tenants_share_takes_nothing_from_others() -> None:
    others = [job(f"b{at}", "b", seats=(f"node-{at}",), since_s=NOW_S - 90.0, submitted_s=0.0) for at in range(2)]
    others += [job(f"c{at}", "c", seats=(f"node-{at}",), since_s=NOW_S - 90.0, submitted_s=0.0) for at in range(2, 4)]

    def stopped(promise: JobState, has: float) -> int:
        now = state([promise, *others], nodes=nodes(4), memory={"promised": {"a": (has, 0.0)}, "at_s": NOW_S})
        return sum(isinstance(one, Preempt) for one in by_job(decide(replace(now, now_s=NOW_S))).values())

    wide = bound("p", 60.0, 70.0, size=3)
    assert stopped(wide, 0.0) == 0, "three devices for a minute are more than a third of four in 70 s"
    assert stopped(wide, 100.0) == 3
    assert stopped(bound("p", 20.0, 70.0), -60.0) == 1, "what its share has room for it has anyway"
