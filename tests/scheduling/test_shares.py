"""Weighted max-min entitlements: what they add up to, what they never exceed, and that they scale."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.scheduling.metrics import jain
from fairlead.scheduling.shares import entitlements
from fairlead.scheduling.state import TenantState

from .clusters import calls, several

weights = st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.0, 7.0])
teams = st.lists(st.tuples(weights, st.none() | st.integers(1, 6), st.integers(0, 20)), min_size=1, max_size=8)


def of(rows: list[tuple[float, int | None, int]]) -> tuple[list[TenantState], dict[str, float]]:
    owners = [TenantState(f"t{i}", weight, quota) for i, (weight, quota, _) in enumerate(rows)]
    return owners, {f"t{i}": float(demand) for i, (_, _, demand) in enumerate(rows)}


@several
@given(teams, st.integers(0, 40))
def test_entitlements_use_everything_that_is_wanted_and_nothing_more(rows: list, capacity: int) -> None:  # type: ignore[type-arg]
    owners, demand = of(rows)
    entitled = entitlements(owners, demand, capacity)
    caps = {t.name: min(demand[t.name], demand[t.name] if t.quota is None else t.quota) for t in owners}
    assert abs(sum(entitled.values()) - min(capacity, sum(caps.values()))) < 1e-6
    assert all(-1e-9 <= entitled[name] <= cap + 1e-9 for name, cap in caps.items())


@several
@given(teams, st.integers(0, 40))
def test_whoever_is_not_satisfied_has_as_much_per_weight_as_anybody(rows: list, capacity: int) -> None:  # type: ignore[type-arg]
    owners, demand = of(rows)
    entitled = entitlements(owners, demand, capacity)
    most = max(entitled[t.name] / t.weight for t in owners)
    for tenant in owners:
        cap = min(demand[tenant.name], tenant.quota or demand[tenant.name])
        assert entitled[tenant.name] >= cap - 1e-6 or entitled[tenant.name] / tenant.weight >= most - 1e-6


def test_weights_3_2_1_of_four_devices() -> None:
    owners = [TenantState("a", 3), TenantState("b", 2), TenantState("c", 1)]
    entitled = entitlements(owners, {"a": 9, "b": 9, "c": 9}, 4)
    assert {name: round(amount, 2) for name, amount in entitled.items()} == {"a": 2.0, "b": 1.33, "c": 0.67}


def test_what_one_does_not_use_is_lent_by_weight() -> None:
    owners = [TenantState("a", 3), TenantState("b", 2), TenantState("c", 1)]
    assert entitlements(owners, {"a": 1, "b": 9, "c": 9}, 10) == {"a": 1.0, "b": 6.0, "c": 3.0}


def test_equal_tenants_get_equal_shares() -> None:
    owners = [TenantState(f"t{i}") for i in range(10)]
    assert jain(entitlements(owners, {t.name: 5.0 for t in owners}, 7).values()) > 0.999999


def test_the_work_of_sharing_grows_no_faster_than_the_number_of_tenants() -> None:
    few, many = ([TenantState(f"t{i}", 1 + i % 7) for i in range(count)] for count in (1000, 4000))
    for_few = calls(lambda: entitlements(few, {t.name: 3.0 for t in few}, 800))
    assert calls(lambda: entitlements(many, {t.name: 3.0 for t in many}, 3200)) < 5 * for_few
