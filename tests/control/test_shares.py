"""Shares over time: what was held adds up to the ledger, and who was entitled to what follows the weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.control.accounting.budgets import BudgetStop
from fairlead.control.accounting.shares import DemandSpan, Window, shares_view
from fairlead.control.store import ledger, metrics, usage_spans

from .made import tenant, usage
from .stores import Opened

WINDOW = Window(100.0, 200.0, 10)
TEAMS = [tenant("a", 2.0, 0), tenant("b", 1.0, 1)]


def test_what_was_held_lies_in_the_intervals_in_which_it_was() -> None:
    lines = [usage("a", 3, 95.0, 115.0), usage("b", 1, 150.0, 250.0), usage("stranger", 9, 100.0, 200.0)]
    view = shares_view(TEAMS, [], lines, 4, WINDOW)
    held = {line.tenant: line.held for line in view.tenants}
    assert held == {"a": [3.0, 1.5, *[0.0] * 8], "b": [*[0.0] * 5, *[1.0] * 5]}
    assert (view.step_s, view.devices) == (10.0, 4)


def test_the_entitlement_is_shared_by_weight_among_those_who_had_jobs() -> None:
    wishes = [DemandSpan("a", 0.0, 150.0), DemandSpan("b", 120.0, 500.0), DemandSpan("gone", 100.0, 200.0)]
    view = shares_view(TEAMS, wishes, [], 6, WINDOW)
    entitled = {line.tenant: line.entitlement for line in view.tenants}
    assert entitled == {"a": [6.0, 6.0, *[4.0] * 3, *[0.0] * 5], "b": [0.0, 0.0, *[2.0] * 3, *[6.0] * 5]}


def test_shares_are_told_to_a_thousandth() -> None:
    view = shares_view(
        TEAMS, [DemandSpan(name, 0.0, 500.0) for name in "ab"], [usage("b", 1, 100.0, 103.33337)], 1, WINDOW
    )
    first, second = view.tenants
    assert second.held[0] == 0.333 and (first.entitlement[0], second.entitlement[0]) == (0.667, 0.333)


def test_a_quota_bounds_the_entitlement_and_the_rest_is_lent() -> None:
    teams = [replace(TEAMS[0], quota=1), TEAMS[1]]
    view = shares_view(teams, [DemandSpan("a", 0.0, 200.0), DemandSpan("b", 0.0, 200.0)], [], 6, WINDOW)
    assert [line.entitlement[0] for line in view.tenants] == [1.0, 5.0]


def test_who_has_used_up_its_budget_is_entitled_to_nothing_and_its_part_is_the_others() -> None:
    wishes = [DemandSpan("a", 0.0, 500.0), DemandSpan("b", 0.0, 500.0)]
    view = shares_view(TEAMS, wishes, [], 6, WINDOW, [BudgetStop("a", 126.0, 164.0), BudgetStop("gone", 0.0, 500.0)])
    entitled = {line.tenant: line.entitlement for line in view.tenants}
    assert entitled["a"] == [4.0, 4.0, 4.0, 0.0, 0.0, 0.0, 4.0, 4.0, 4.0, 4.0], "for most of the interval"
    assert entitled["b"] == [2.0, 2.0, 2.0, 6.0, 6.0, 6.0, 2.0, 2.0, 2.0, 2.0]


def test_a_tenant_without_budget_for_just_half_an_interval_is_entitled_in_it() -> None:
    wishes = [DemandSpan("a", 0.0, 500.0), DemandSpan("b", 0.0, 500.0)]
    view = shares_view(TEAMS, wishes, [], 6, WINDOW, [BudgetStop("a", 100.0, 105.0), BudgetStop("a", 110.0, 115.5)])
    assert view.tenants[0].entitlement[:3] == [4.0, 0.0, 4.0]


def test_a_period_that_only_touches_an_interval_covers_none_of_it() -> None:
    assert list(WINDOW.overlaps(110.0, 120.0)) == [(1, 1.0)]
    assert list(WINDOW.overlaps(95.0, 105.0)) == [(0, 0.5)] and list(WINDOW.overlaps(195.0, 300.0)) == [(9, 0.5)]


@given(st.lists(st.tuples(st.floats(0, 300), st.floats(0, 100), st.integers(1, 8)), max_size=20))
def test_no_device_time_is_lost_or_made_up(spans: list[tuple[float, float, int]]) -> None:
    lines = [usage("a", devices, from_s, from_s + length) for from_s, length, devices in spans]
    view = shares_view(TEAMS, [], lines, 8, WINDOW)
    within = sum(n * max(0.0, min(f + w, 200.0) - max(f, 100.0)) for f, w, n in spans)
    assert sum(view.tenants[0].held) * view.step_s == pytest.approx(within, abs=0.1 + 0.01 * len(spans))


def test_lines_of_one_tenant_for_the_same_time_are_one(db: Opened) -> None:
    same = [usage("vision", 2, 10.0, 20.0, 1.0), usage("vision", 3, 10.0, 20.0, 2.0), usage("text", 1, 10.0, 20.0)]
    db.write(ledger.append, [*same, usage("vision", 1, 20.0, 30.0)])
    found = db.read(usage_spans.spans_by_tenant, 0.0, 100.0)
    told = sorted((line.tenant, line.from_s, line.devices, line.cpu_s) for line in found)
    assert told == [("text", 10.0, 1, 0.0), ("vision", 10.0, 5, 3.0), ("vision", 20.0, 1, 0.0)]
    assert sum(line.device_s for line in found) == sum(
        line.device_s for line in db.read(ledger.lines_between, 0.0, 100.0)
    )


def test_a_long_history_is_thinned_out_without_losing_its_ends_or_its_metrics() -> None:
    steps = [{"step": float(n), "loss": float(n)} | ({"accuracy": n / 100} if n == 37 else {}) for n in range(1, 101)]
    thin = metrics.downsample(steps, 10)
    assert len(thin) == 10 and thin[-1]["step"] == 100.0 and thin[0] == {"step": 10.0, "loss": 5.5}
    assert [point["accuracy"] for point in thin if "accuracy" in point] == [0.37]
    assert metrics.downsample(steps, 100) == steps and metrics.downsample([], 5) == []
    assert metrics.downsample([{"step": 1.0, "loss": None}, {"step": 2.0}], 1) == [{"step": 2.0, "loss": None}]
