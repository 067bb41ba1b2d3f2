"""A tenant whose budget is used up: what runs goes on, nothing starts or grows, and everybody is told until when."""

from __future__ import annotations

from dataclasses import replace

from fairlead.cluster import NodeState
from fairlead.scheduling import decide
from fairlead.scheduling.explain import explain
from fairlead.scheduling.state import ClusterState, Hold, Preempt, Resize, SpentBudget, Start, TenantState

from .clusters import job, nodes, state

DECEMBER_S = 1_796_083_200.0  # 2026-12-01 00:00 UTC
SPENT = SpentBudget(500.0, "month", DECEMBER_S)
POOR = [TenantState("a", spent=SPENT), TenantState("b")]


def decision(cluster: ClusterState, name: str) -> object:
    return next((d for d in decide(cluster).decisions if d.job == name), None)


def test_a_waiting_job_is_told_the_budget_and_the_date() -> None:
    held = decision(state([job("poor")], tenants=POOR), "poor")
    assert isinstance(held, Hold)
    assert held.reason.code == "budget"
    assert "budget of 500 device hours a month" in held.reason.text
    assert "2026-12-01 00:00 UTC" in held.reason.text
    assert held.expected_start_s == DECEMBER_S == held.reason.facts["again_s"]


def test_why_names_what_would_help() -> None:
    answer = explain(state([job("poor")], tenants=POOR), "poor")
    assert answer is not None and answer.expected_start_s == DECEMBER_S
    assert answer.would_help == ("raise the budget of tenant a", "wait until 2026-12-01 00:00 UTC")


def test_what_runs_goes_on_but_does_not_grow() -> None:
    running = job("poor", workers=(1, 4), seats=("node-0",), speeds={1: 10.0, 2: 20.0}, remaining_samples=1e6)
    rich, poor = (state([running], tenants=teams) for teams in ([TenantState("a")], POOR))
    assert isinstance(decision(rich, "poor"), Resize)
    assert decision(poor, "poor") is None
    answer = explain(poor, "poor")
    assert answer is not None and answer.reason is not None and answer.reason.code == "budget"


def test_others_get_its_share_and_do_not_wait_behind_it() -> None:
    waiting = [job(f"poor-{n}", submitted_s=-9999.0) for n in range(8)]
    others = [job(f"rich-{n}", "b") for n in range(5)]
    decided = {d.job: d for d in decide(state([*waiting, *others], tenants=POOR)).decisions}
    assert [isinstance(decided[f"rich-{n}"], Start) for n in range(5)] == [True] * 4 + [False]
    last = decided["rich-4"]
    assert isinstance(last, Hold) and last.ahead == ()
    assert not any(isinstance(decided[f"poor-{n}"], Start) for n in range(8))


def test_a_gang_that_lost_a_worker_is_made_whole_again() -> None:
    broken = job("poor", workers=(2, 2), seats=("node-0",), broken=True)
    mended = decision(state([broken], tenants=POOR), "poor")
    assert isinstance(mended, Resize) and len(mended.seats) == 2


def test_a_gang_on_a_node_that_is_drained_moves() -> None:
    first, *rest = nodes()
    moved = decision(state([job("poor", seats=("node-0",))], tenants=POOR,
                           nodes=[replace(first, state=NodeState.DRAINING), *rest]), "poor")  # fmt: skip
    assert isinstance(moved, Resize) and moved.seats != ("node-0",)


def test_nobody_makes_room_for_it() -> None:
    others = [job(f"rich-{n}", "b", seats=(f"node-{n}",), since_s=-1e6) for n in range(4)]
    decided = decide(state([*others, job("poor", submitted_s=-1e6)], tenants=POOR)).decisions
    assert not any(isinstance(d, Preempt) for d in decided)


def test_it_starts_again_when_there_is_a_budget() -> None:
    assert isinstance(decision(state([job("poor")], tenants=[TenantState("a"), TenantState("b")]), "poor"), Start)


ABOVE = [
    TenantState("org", spent=SPENT),
    TenantState("a", parent="org", spent=replace(SPENT, of="org")),
    TenantState("b"),
]


def test_who_stands_below_a_used_up_budget_is_told_whose_it_is() -> None:
    answer = explain(state([job("poor")], tenants=ABOVE), "poor")
    assert answer is not None and answer.reason is not None
    assert answer.reason.text.startswith("tenant org, above a, has used up its budget of 500 device hours a month")
    assert answer.would_help[0] == "raise the budget of tenant org"


def test_what_runs_below_a_used_up_budget_goes_on() -> None:
    """The quota of the one above holds those below it, so what they have is part of it."""
    running = [job("poor", workers=(2, 2), seats=("node-0", "node-1"))]
    rest = [job(f"rich-{n}", "b") for n in range(4)]
    decided = {d.job: d for d in decide(state([*running, *rest], tenants=ABOVE)).decisions}
    assert "poor" not in decided
    assert sum(isinstance(each, Start) for each in decided.values()) == 2
