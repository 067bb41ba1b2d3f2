"""The answer at submission: deadlines that cannot be kept are said to be so, with the earliest that could be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.admission import admission
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.decide import decide
from fairlead.scheduling.market import MarketConfig
from fairlead.scheduling.state import ClusterState, JobState, SpentBudget, TenantState

CURVE = SpeedCurve((1, 2, 4), {"fast": ((1.0, 2.0, 4.0), (1.0, 2.0, 4.0))})
MARGIN = MarketConfig().deadline_margin


def cluster(devices: int = 4, *jobs: JobState, **fields: object) -> ClusterState:
    nodes = [Node("n", {DEVICE: float(devices)}, "fast")]
    made = ClusterState(1_000.0, nodes, [TenantState("t")], jobs, round_s=60.0)
    return replace(made, **fields)  # type: ignore[arg-type]


def job(name: str, work: float | None, **fields: object) -> JobState:
    made = JobState(name, "t", 1_000.0, 1, 4, elastic=True, curve=CURVE, work_left=work, restart_cost_s=0.0)
    return replace(made, **fields)  # type: ignore[arg-type]


def test_a_deadline_that_can_be_kept_is_said_so_with_the_smallest_gang_that_keeps_it() -> None:
    answer = admission(cluster(), job("new", 400.0, finish_by_s=1_000.0 + 250.0))
    assert (answer.admitted, answer.kept, answer.gang) == (True, True, 2)
    assert answer.expected_start_s == 1_000.0
    assert answer.expected_finish_s == pytest.approx(1_100.0)
    assert answer.seats == ("n",) * 4
    assert "with 2 devices or more" in answer.why.text


def test_a_deadline_that_cannot_be_kept_is_answered_with_the_earliest_that_could_be() -> None:
    answer = admission(cluster(), job("new", 4_000.0, finish_by_s=1_500.0))
    assert (answer.admitted, answer.kept, answer.gang) == (True, False, None)
    assert answer.earliest_deadline_s == pytest.approx(1_000.0 + 1_000.0 * MARGIN)
    assert answer.why.code == "late-finish"
    assert "cannot be kept" in answer.why.text


def test_only_who_wants_to_be_refused_is() -> None:
    late = job("new", 4_000.0, finish_by_s=1_500.0)
    assert not admission(cluster(), late, strict=True).admitted
    assert admission(cluster(), replace(late, finish_by_s=3_000.0), strict=True).admitted
    assert admission(cluster(), replace(late, work_left=None), strict=True).admitted, "nobody knows"


def test_promises_that_others_were_given_come_first() -> None:
    """The other needs all devices until its deadline: what is left for the new one begins there."""
    other = job("other", 4_000.0, finish_by_s=2_040.0)
    answer = admission(cluster(4, other), job("new", 400.0, finish_by_s=1_900.0))
    assert answer.kept is False
    assert answer.earliest_deadline_s == pytest.approx(2_040.0 + 100.0 * MARGIN, abs=15.0)


def test_a_tenant_is_not_promised_what_others_are_entitled_to() -> None:
    """Alone it would have all four devices, and beside another tenant two."""
    others = [replace(job(f"o{at}", 50_000.0, min_workers=1, max_workers=4), tenant="u") for at in range(4)]
    both = cluster(4, *others, tenants=[TenantState("t"), TenantState("u")])
    new = job("new", 4_000.0, finish_by_s=1_000.0 + 1_100.0)
    assert admission(cluster(4), new).kept is True
    crowded = admission(both, new)
    assert crowded.kept is False
    assert crowded.earliest_deadline_s is not None and crowded.expected_finish_s is not None
    assert crowded.earliest_deadline_s >= crowded.expected_finish_s > 2_100.0


def test_a_quota_bounds_what_can_be_promised() -> None:
    capped = cluster(tenants=[TenantState("t", quota=1)])
    answer = admission(capped, job("new", 400.0, finish_by_s=1_200.0))
    assert answer.kept is False
    assert answer.earliest_deadline_s == pytest.approx(1_000.0 + 400.0 * MARGIN)


def test_without_a_length_nothing_is_said_about_a_deadline() -> None:
    unknown = job("new", None, finish_by_s=1_500.0)
    answer = admission(cluster(), unknown)
    assert (answer.kept, answer.earliest_deadline_s, answer.expected_finish_s) == (None, None, None)
    assert answer.why.code == "length-unknown"
    assert admission(cluster(), replace(unknown, facts={"takes_s": 60.0})).kept is True
    assert admission(cluster(), replace(unknown, facts={"takes_s": 6_000.0})).kept is False


def test_a_class_is_in_time_when_the_expected_start_is() -> None:
    busy = [job(f"b{at}", 1_000.0, min_workers=4, seats=("n",) * 4) for at in range(1)]
    gold = job("new", 4_000.0, min_workers=4, start_by_s=1_060.0)
    assert admission(cluster(), gold).kept is True
    late = admission(cluster(4, *busy), replace(gold, start_by_s=1_000.0))
    assert late.kept is False
    assert late.why.code == "late-start"


def test_without_looking_ahead_deadlines_are_answered_all_the_same() -> None:
    answer = admission(cluster(), job("new", 4_000.0, finish_by_s=1_500.0), look_ahead=False)
    assert (answer.kept, answer.expected_start_s) == (False, None)
    assert answer.earliest_deadline_s == pytest.approx(1_000.0 + 1_000.0 * MARGIN)
    gold = admission(cluster(), job("new", 400.0, start_by_s=1_060.0), look_ahead=False)
    assert (gold.kept, gold.why.code) == (None, "not-known")


WHOLE = SpeedCurve((1, 2, 4), {"fast": ((1.0, 2.0, 4.0),) * 2, "slow": ((0.1, 0.2, 0.4),) * 2})
HURRIED = job("new", 1_500.0, curve=WHOLE, finish_by_s=1_000.0 + 600.0)  # kept by four devices, not by one


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(
    ("tenants", "fields"),
    [
        ([TenantState("t")], {"demand": {"memory": 60e9}}),
        ([TenantState("t")], {"demand": {"cpu": 5.0}}),
        ([TenantState("t")], {"only": frozenset({"small"})}),
        ([TenantState("t", parent="org"), TenantState("org", quota=1)], {}),
        ([TenantState("t", most={"fast": 1.0})], {}),
        ([TenantState("t", parent="org"), TenantState("org", most={"fast": 1.0})], {}),
    ],
    ids=["memory", "cpu", "only", "quota above", "most", "most above"],
)
def test_nothing_is_promised_on_devices_that_the_job_cannot_have(
    tenants: list[TenantState], fields: dict[str, object], live: bool
) -> None:
    large = Node("n", {DEVICE: 4.0, "memory": 64e9, "cpu": 8.0}, "fast", topology=("large", "n"))
    small = Node("s", {DEVICE: 1.0, "memory": 1e9, "cpu": 1.0}, "fast", topology=("small", "s"))
    state = cluster(tenants=tenants, nodes=[large, small], at_once=not live, round_s=None if live else 60.0)
    policy = decide if live else None
    assert admission(replace(state, tenants=[TenantState("t")]), HURRIED, policy, strict=True).kept
    for look_ahead in (True, False):
        held = replace(HURRIED, **fields)  # type: ignore[arg-type]
        answer = admission(state, held, policy, strict=True, look_ahead=look_ahead)
        assert (answer.kept, answer.admitted, answer.gang) == (False, False, None)
        assert answer.earliest_deadline_s == pytest.approx(1_000.0 + 1_500.0 * MARGIN, rel=0.01)
        assert not look_ahead or answer.expected_finish_s == pytest.approx(2_500.0, abs=60.0)


def test_nothing_is_promised_before_a_spent_budget_begins_anew() -> None:
    spent = cluster(tenants=[TenantState("t", spent=SpentBudget(1.0, "day", 51_000.0))])
    answer = admission(spent, HURRIED)
    assert answer.kept is False
    assert answer.earliest_deadline_s == pytest.approx(51_000.0 + 1_500.0 / 4 * MARGIN, abs=120.0)
    assert answer.expected_finish_s is not None and answer.expected_finish_s >= 51_000.0
    assert admission(spent, replace(HURRIED, finish_by_s=52_000.0)).kept is True


def test_what_others_were_promised_on_a_type_is_not_promised_again_because_another_type_is_idle() -> None:
    """Both could be done by their deadlines, but not both on the one fast device that they ask for."""
    nodes = [Node("f", {DEVICE: 1.0}, "fast"), Node("s", {DEVICE: 8.0}, "slow")]
    one = {"curve": WHOLE, "device_type": "fast", "max_workers": 1, "finish_by_s": 3_000.0}
    other, new = job("other", 1_900.0, **one, seats=("f",)), job("new", 1_500.0, **one)
    answer = admission(cluster(nodes=nodes, jobs=[other]), new, strict=True)
    assert (answer.kept, answer.admitted) == (False, False)
    assert answer.earliest_deadline_s is not None and answer.earliest_deadline_s >= 1_000.0 + 1_900.0 + 1_500.0
    assert admission(cluster(nodes=[*nodes, Node("g", {DEVICE: 1.0}, "fast")], jobs=[other]), new).kept is True


def test_the_expected_finish_is_what_was_played_and_not_the_deadline() -> None:
    answer = admission(cluster(), job("new", 4_000.0, finish_by_s=2_032.0))
    assert answer.expected_finish_s == pytest.approx(2_000.0)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.floats(10.0, 3_000.0), st.floats(50.0, 4_000.0)), max_size=5), st.floats(10.0, 5_000.0))
def test_the_earliest_date_that_is_named_can_be_kept(others: list[tuple[float, float]], work: float) -> None:
    jobs = [job(f"o{at}", left, finish_by_s=1_000.0 + by_s) for at, (left, by_s) in enumerate(others)]
    state = cluster(4, *jobs)
    earliest_s = admission(state, job("new", work, finish_by_s=1_001.0)).earliest_deadline_s
    assert earliest_s is not None
    assert admission(state, job("new", work, finish_by_s=earliest_s)).kept
    planned = admission(state, job("new", work, finish_by_s=1_001.0), look_ahead=False)
    assert planned.earliest_deadline_s is not None and planned.earliest_deadline_s <= earliest_s
    assert not admission(state, job("new", work, finish_by_s=planned.earliest_deadline_s - 1.0)).kept
