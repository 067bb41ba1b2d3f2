"""Expected starts: the policy played forward. Exact where nothing is unknown, cheap however long the queue is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling import decide
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.forecast import FEWEST_STEPS, FOR_ONE, MOST_STEPS, MOST_WAITING, forecast
from fairlead.scheduling.job_speed import expected_work_left, length_known, speed_on_seats
from fairlead.scheduling.market import Market
from fairlead.scheduling.market.estimates import JobEstimate, class_of
from fairlead.scheduling.state import ClusterState, JobState, Round, SpentBudget, TenantState
from tests.scheduling import clusters

ONE = SpeedCurve((1,), {"fast": ((1.0,), (1.0,))})
TWO = SpeedCurve((1, 2), {"fast": ((1.0, 1.8), (0.0, 1.2))})


def cluster(devices: int, *jobs: JobState, **fields: object) -> ClusterState:
    made = ClusterState(0.0, [Node("n", {DEVICE: float(devices)}, "fast")], [], jobs, round_s=60.0)
    return replace(made, **fields)  # type: ignore[arg-type]


def job(name: str, work: float | None = 100.0, **fields: object) -> JobState:
    made = JobState(name, "t", 0.0, curve=ONE, work_left=work, restart_cost_s=0.0)
    return replace(made, **fields)  # type: ignore[arg-type]


class Counted:
    """A policy that knows how often it was asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, state: ClusterState) -> Round:
        self.calls += 1
        return Market()(state)


def test_jobs_start_when_those_before_them_are_done() -> None:
    found = forecast(cluster(2, *(job(f"j{at}", 110.0) for at in range(6))), Market())
    assert [found.start_s[f"j{at}"] for at in range(6)] == [0.0, 0.0, 120.0, 120.0, 240.0, 240.0]
    assert found.finish_s["j5"] == pytest.approx(350.0)
    assert found.seats["j3"] == ("n",)


def test_who_runs_already_has_no_start_but_a_finish() -> None:
    found = forecast(cluster(1, job("runs", 90.0, seats=("n",)), job("waits")), Market())
    assert found.start_s == {"waits": 120.0}
    assert found.finish_s["runs"] == pytest.approx(90.0)


def test_who_is_preempted_on_the_way_has_no_start_either() -> None:
    jobs = [job("runs", 5_000.0, seats=("n",)), *(job(f"short{at}", 60.0, submitted_s=-600.0) for at in range(4))]
    assert "runs" not in forecast(cluster(1, *jobs), Market()).start_s


def test_who_can_never_start_as_things_are_is_told_nothing() -> None:
    found = forecast(cluster(2, job("wide", min_workers=4, max_workers=4, curve=None), job("fits")), Market())
    assert set(found.start_s) == {"fits"}


def test_a_tenant_without_budget_starts_in_its_next_period() -> None:
    spent = TenantState("t", spent=SpentBudget(1.0, "day", 3_600.0))
    found = forecast(cluster(1, job("waits"), tenants=[spent]), Market())
    assert found.start_s["waits"] == pytest.approx(3_600.0, rel=0.3)
    assert found.start_s["waits"] >= 3_600.0


def test_what_the_policy_has_decided_already_is_not_asked_again() -> None:
    state, policy = cluster(1, job("a"), job("b")), Counted()
    assert forecast(state, policy, first=Market()(state)) == forecast(state, Market())
    assert policy.calls == 1


def test_the_finish_of_one_job_is_played_to_its_end() -> None:
    jobs = [job(f"j{at}", 1_000.0) for at in range(3)]
    found = forecast(cluster(3, *jobs), Market(), finishes=("j1",))
    assert found.until_s >= 1_000.0
    assert found.finish_s["j1"] == pytest.approx(1_000.0)


def test_a_long_queue_costs_no_more_than_a_bounded_number_of_decisions_and_all_are_told_something() -> None:
    policy = Counted()
    jobs = [job(f"j{at:04d}", 500.0 + at, submitted_s=float(-at)) for at in range(3 * MOST_WAITING)]
    found = forecast(cluster(8, *jobs), policy)
    assert FEWEST_STEPS < policy.calls <= MOST_STEPS + 1
    assert set(found.start_s) == {one.id for one in jobs}


def test_in_a_long_queue_one_job_is_played_until_it_starts() -> None:
    jobs = [job(f"j{at:04d}", 500.0 + at, submitted_s=float(-at)) for at in range(3 * MOST_WAITING)]
    soon, late = Counted(), Counted()
    short = forecast(cluster(8, *jobs, job("short", 1.0, submitted_s=-9e4)), soon, finishes=("short",))
    long = forecast(cluster(8, *jobs, job("long", 1_500.0)), late, finishes=("long",))
    assert soon.calls < late.calls <= FOR_ONE + 1
    assert short.start_s["short"] < short.finish_s["short"] < long.start_s["long"] < long.finish_s["long"]


def test_unknown_lengths_are_played_as_the_policy_expects_them() -> None:
    state = cluster(1, job("a", None), job("b", None))
    assert expected_work_left(state, state.jobs) == pytest.approx([300.0, 300.0])
    assert not length_known(state, state.jobs[0])
    told = job("c", None, facts={"takes_s": 50.0})
    assert expected_work_left(state, [told]) == pytest.approx([50.0])
    assert length_known(state, told)
    assert forecast(state, Market()).start_s["b"] > 0.0


def test_jobs_like_it_that_have_finished_tell_how_long_it_takes() -> None:
    fresh = job("new", None)
    finished = {class_of(fresh): tuple(JobEstimate("x", done, done, 0.0) for done in (40.0, 60.0))}
    state = cluster(1, fresh, memory={"finished": finished})
    assert length_known(state, fresh)
    assert expected_work_left(state, [fresh]) == [50.0]
    assert expected_work_left(state, [replace(fresh, work_done=45.0)]) == [15.0]
    assert expected_work_left(state, [replace(fresh, work_done=70.0)])[0] > 100.0, "longer than any: as usual"


def command(name: str, takes_s: float = 100.0, **fields: object) -> JobState:
    """A command as the live platform tells of it: no curve, no samples, but how long it is said to take."""
    made = JobState(name, "t", 0.0, facts={"takes_s": takes_s}, starts_over=True, restart_cost_s=30.0)
    return replace(made, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ran_s", "left_s"), [(0.0, 100.0), (60.0, 40.0), (99.0, 10.0), (105.0, 10.0), (130.0, 30.0)])
def test_what_its_author_said_counts_before_precedents_and_who_is_past_it_is_about_to_end(
    ran_s: float, left_s: float
) -> None:
    one = command("c", seats=("n",), since_s=-ran_s)
    finished = {class_of(one): (JobEstimate(class_of(one), 5_000.0, 5_000.0, 0.0),) * 9}
    assert expected_work_left(cluster(1, one, memory={"finished": finished}), [one]) == [pytest.approx(left_s)]


def test_live_whoever_waits_is_told_when_its_gang_will_have_come_up() -> None:
    runs = command("runs", seats=("n",), since_s=-50.0, restart_cost_s=4.0)  # it took four seconds to come up
    found = forecast(cluster(1, runs, command("waits"), round_s=None), decide)
    assert found.start_s["waits"] == pytest.approx(50.0 + 4.0, abs=2.0)  # events that are far off are looked at later
    assert found.finish_s["waits"] == pytest.approx(found.start_s["waits"] + 100.0)


def test_live_a_command_that_still_comes_up_has_done_nothing_yet() -> None:
    known = command("known", 9_000.0, seats=("n",), restart_cost_s=4.0)
    comes_up = command("comes-up", seats=("n",), since_s=-1.0, frozen=True)
    found = forecast(cluster(2, known, comes_up, command("waits"), round_s=None), decide)
    assert found.finish_s["comes-up"] == pytest.approx(3.0 + 100.0)


def test_who_starts_now_is_told_now() -> None:
    assert forecast(cluster(1, command("c"), round_s=None), decide).start_s == {"c": 0.0}


def test_a_gang_of_a_size_that_its_curve_does_not_know_is_no_error() -> None:
    odd = job("odd", min_workers=3, max_workers=3, curve=TWO, seats=("n", "n", "n"), work_done=5.0)
    assert TWO.fastest(3) == 0.0 and TWO.fastest(2) == TWO.fastest() == 1.8
    assert not decide(replace(cluster(4, odd), at_once=False)).decisions


def test_speeds_come_from_the_curve_and_from_where_the_gang_sits() -> None:
    nodes = {name: Node(name, {DEVICE: 1.0}, "fast") for name in "ab"}
    assert speed_on_seats(job("a", curve=TWO), ("a", "a"), nodes) == 1.8
    assert speed_on_seats(job("a", curve=TWO), ("a", "b"), nodes) == 1.2
    assert speed_on_seats(job("a", curve=TWO), ("gone",), nodes) == 0.0
    live = job("a", None, curve=None, speeds={2: 80.0}, remaining_samples=800.0)
    assert speed_on_seats(live, ("a", "b"), nodes) == 80.0
    assert expected_work_left(cluster(1, live), [live]) == [800.0]


def test_the_live_policy_is_played_as_well_with_speeds_as_measured() -> None:
    """Four devices: one gang holds them all for ten more seconds."""
    busy = clusters.job("busy", workers=(4, 4), seats=tuple(f"node-{at}" for at in range(4)), since_s=50.0,
                        speeds={4: 100.0}, remaining_samples=1_000.0)  # fmt: skip
    state = clusters.state([busy, clusters.job("next", workers=(2, 2), submitted_s=99.0)])
    found = forecast(state, decide)
    assert 110.0 <= found.start_s["next"] <= 116.0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(10.0, 2_000.0), min_size=1, max_size=8), st.integers(1, 4))
def test_a_forecast_is_what_comes_when_nobody_else_does(lengths: list[float], devices: int) -> None:
    """As many rounds on as it takes, the policy itself starts everybody just then, as long as no step was left out."""
    state = cluster(devices, *(job(f"j{at}", length) for at, length in enumerate(lengths)))
    found = forecast(state, Market())
    assert set(found.start_s) == {one.id for one in state.jobs}
    assert all(found.finish_s[name] > start_s for name, start_s in found.start_s.items())
    assert sum(start_s == 0.0 for start_s in found.start_s.values()) == min(devices, len(lengths))
    again = forecast(replace(state, jobs=tuple(reversed(state.jobs))), Market())
    assert again.start_s == found.start_s
