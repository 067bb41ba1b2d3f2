"""On a live cluster, too, yesterday's hog waits: claims are shares and what is owed, counted in useful work."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.decide import decide
from fairlead.scheduling.live_round import live_round
from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.tenants import Account
from fairlead.scheduling.situation import Situation
from fairlead.scheduling.state import ClusterState, JobState, Sharing, Start, TenantState

from .clusters import SlowBackend, by_job, job, nodes, state, used_by_tenant

HOUR_S = 3_600.0


def owed(devices: float, now_s: float = 100.0) -> dict[str, object]:
    """Tenant a had so many devices too much for as long as it takes to repay them, and b so many too few."""
    debt = devices * MarketConfig().repay_s
    return {"accounts": {"a": Account(owed=-debt), "b": Account(owed=debt)}, "at_s": now_s}


def many(tenant: str, count: int, **fields: object) -> list[JobState]:
    return [job(f"{tenant}-{at:02}", tenant, **fields) for at in range(count)]  # type: ignore[arg-type]


def started(now: ClusterState) -> Counter[str]:
    found = by_job(decide(now))
    return Counter(one.tenant for one in now.jobs if isinstance(found.get(one.id), Start))


@pytest.mark.parametrize("at_once", [True, False])
def test_who_had_too_much_waits_while_who_is_owed_is_served(at_once: bool) -> None:
    now = state([*many("a", 10), *many("b", 10)], nodes=nodes(8), at_once=at_once)
    assert started(now) == {"a": 4, "b": 4}
    assert started(replace(now, memory=owed(4))) == {"b": 8}
    assert started(replace(now, memory=owed(1))) == {"a": 3, "b": 5}


def test_a_waiting_job_is_told_that_its_tenant_had_too_much_or_is_owed() -> None:
    running = [replace(one, seats=(f"node-{at}",)) for at, one in enumerate([*many("a", 4), *many("b", 4)])]
    waiting = [job("x", "a", submitted_s=999.0), job("y", "b", submitted_s=999.0), job("z", "b", submitted_s=999.0)]
    now = state([*running, *waiting], nodes=nodes(8), now_s=1_000.0, memory=owed(2, 1_000.0))
    young = replace(now, jobs=[replace(one, since_s=990.0) for one in now.jobs])
    told = by_job(live_round(young))["x"].reason.text
    assert "uses 4 of the 4 it is entitled to (minus 2, as it had too much before)" in told
    victim = next(one for one in live_round(now).decisions if getattr(one.reason.facts.get("to"), "tenant", "") == "b")
    assert (
        "tenant b, whose tenant uses 4 of the 4 it is entitled to (plus 2, as it had too little before)"
        in victim.reason.text
    )


@pytest.mark.parametrize("workers", [(1, 1), (2, 2), (1, 4)])
def test_a_debt_is_repaid_without_gangs_being_stopped_back_and_forth(workers: tuple[int, int]) -> None:
    """Three hours of two tenants who want all there is: then they are nearly even, and few gangs went for it."""
    jobs = [one for name in ("a", "b") for one in many(name, 8, workers=workers, restart_cost_s=60.0)]
    sits = [at * workers[0] // 4 for at in range(8 // workers[0])]
    seated = [replace(one, seats=(f"node-{at}",) * workers[0]) for at, one in zip(sits, jobs, strict=False)]
    backend = SlowBackend(state([*seated, *jobs[len(seated) :]], nodes=nodes(2, 4), memory=owed(4)), takes=1)
    owner, had, taken = {one.id: one.tenant for one in jobs}, Counter[str](), Counter[tuple[str, str]]()
    for _ in range(180):
        for one in backend.round(60.0):
            if one.reason.code == "make-room" and one.reason.facts["to"].tenant != owner[one.job]:
                taken[owner[one.job], one.reason.facts["to"].tenant] += 1
        had += used_by_tenant(backend.now)
    assert had["b"] > had["a"] * 1.5
    assert backend.now.memory["accounts"]["b"].owed < 0.5 * MarketConfig().repay_s, "it was four times that"
    assert taken["a", "b"] <= 12 and taken["b", "a"] <= (12 if workers[0] == workers[1] else 20), taken


def test_slow_devices_count_for_what_they_are_worth() -> None:
    """Four K80 at a tenth of the speed are 0.4 devices of useful work, live as in the simulator."""

    def there(kind: str, count: int) -> list[Node]:
        return [Node(f"{kind}-{at}", {"cpu": 4.0, "memory": 4e9, DEVICE: 1.0}, device_type=kind) for at in range(count)]

    curve = SpeedCurve((1,), {"k80": ((1.0,), (1.0,)), "v100": ((10.0,), (10.0,))})
    slow = [replace(one, curve=curve, seats=(f"k80-{at}",)) for at, one in enumerate(many("a", 4))]
    fast = [replace(one, curve=curve, seats=(f"v100-{at}",)) for at, one in enumerate(many("b", 4))]
    frozen = [replace(one, frozen=True) for one in [*slow, *fast]]  # so that they stay where they are
    now = state(frozen, nodes=[*there("k80", 4), *there("v100", 4)])
    accounts = live_round(now).memory["accounts"]
    assert (accounts["a"].used, accounts["b"].used) == (4.0, 4.0)
    assert accounts["a"].useful == pytest.approx(0.4) and accounts["b"].useful == pytest.approx(4.0)
    later = live_round(replace(now, now_s=now.now_s + HOUR_S, memory={"accounts": accounts, "at_s": now.now_s}))
    assert later.memory["accounts"]["a"].owed == pytest.approx(3.6 * HOUR_S)


def test_in_a_tree_what_is_owed_is_repaid_by_those_beside_and_divided_by_those_below() -> None:
    teams = [TenantState("a"), TenantState("b"), TenantState("b1", parent="b"), TenantState("b2", parent="b")]
    jobs = [*many("a", 10), *many("b1", 10), *many("b2", 10)]
    debt = 4 * MarketConfig().repay_s
    accounts = {"a": Account(owed=-debt), "b": Account(owed=debt), "b1": Account(owed=debt)}
    now = state(jobs, nodes=nodes(8), tenants=teams, memory={"accounts": accounts, "at_s": 100.0})
    assert started(now) == {"b1": 6, "b2": 2}


def test_below_the_threshold_that_was_settled_debts_are_repaid_sooner_live_too() -> None:
    debt = MarketConfig().hurry_s
    accounts = {"a": Account(-debt, due_s=9e4, had_s=9e4), "b": Account(debt, due_s=9e4, had_s=3e4)}
    now = state([*many("a", 10), *many("b", 10)], nodes=nodes(8), memory={"accounts": accounts, "at_s": 100.0})
    assert started(now) == {"a": 3, "b": 5}, "within half an hour"
    lax = replace(now, sharing=Sharing(fair=0.5))
    assert started(lax) == {"a": 4, "b": 4}, "within three hours"
    assert not live_round(lax).memory["fairness"]["corrects"] and live_round(now).memory["fairness"]["corrects"]


def test_what_is_owed_fades_as_fast_as_was_settled() -> None:
    now = state(many("a", 1), nodes=nodes(8), now_s=100.0 + HOUR_S, memory=owed(4), sharing=Sharing(forget_s=HOUR_S))
    assert Situation.of(now).shares.accounts["b"].owed == pytest.approx(2 * MarketConfig().repay_s)
