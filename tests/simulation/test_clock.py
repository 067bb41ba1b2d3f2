"""When decisions are made, and what they cost: slots, grids, pauses and restarts by the size of a gang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.state import ClusterState, Hold, Reason, Resize, Round, Start
from fairlead.simulation.engine import Settings, simulate
from fairlead.simulation.trace import Clock, Trace, TraceJob
from fairlead.simulation.trace_formats.recorded import RecordedJob

NODES = [Node("n0", {DEVICE: 4.0}, "gpu")]


@dataclass
class Eager:
    """Starts everything at once and writes down when it was asked."""

    asked_s: list[float] = field(default_factory=list)
    wishes: dict[str, float] = field(default_factory=dict)
    decline: Sequence[str] = ()

    def __call__(self, state: ClusterState) -> Round:
        self.asked_s.append(state.now_s)
        reason = Reason("starts", "now")
        starts = [Start(job.id, ("n0",) * job.min_workers, reason) for job in state.jobs if not job.seats]
        kept = [one if one.job not in self.decline else Hold(one.job, Reason("declined", "no")) for one in starts]
        return Round(tuple(kept), {}, self.wishes)


def trace(*jobs: tuple[str, float, float], clock: Clock = Clock.SLOTS, **more: float) -> Trace:
    made = [
        TraceJob(name, arrival, RecordedJob(work, 1), 1, 1, deadline_s=arrival + 1000) for name, arrival, work in jobs
    ]
    return Trace("t", "test", made, 60.0, 0.0, NODES, clock=clock, **more)  # type: ignore[arg-type]


def test_slots_are_never_shorter_than_a_round_and_last_until_something_happens() -> None:
    policy = Eager()
    simulate(trace(("a", 0.0, 1000.0), ("b", 10.0, 30.0), ("c", 500.0, 100.0)), NODES, policy)
    assert policy.asked_s == [0.0, 60.0, 120.0, 500.0, 600.0]


def test_an_arrival_long_after_the_last_decision_is_served_at_once() -> None:
    outcome = simulate(trace(("a", 0.0, 10.0), ("b", 301.0, 10.0)), NODES, Eager())
    assert [job.started_s for job in outcome.jobs] == [0.0, 301.0]


def test_a_policy_can_ask_to_be_woken() -> None:
    policy = Eager(wishes={"wake_s": 200.0})
    simulate(trace(("a", 0.0, 300.0)), NODES, policy)
    assert 200.0 in policy.asked_s


def test_rounds_lie_on_the_grid_that_the_trace_names() -> None:
    policy = Eager()
    outcome = simulate(trace(("a", 53.0, 100.0), clock=Clock.ROUNDS, grid_s=0.0), NODES, policy)
    assert policy.asked_s == [60.0, 120.0]
    assert outcome.jobs[0].finished_s == 160.0
    assert outcome.makespan_s == 107.0


def test_what_was_turned_away_is_not_run_and_counts_as_late() -> None:
    outcome = simulate(trace(("a", 0.0, 100.0), ("b", 0.0, 100.0)), NODES, Eager(decline=("b",)))
    assert [job.id for job in outcome.jobs] == ["a"]
    assert [job.id for job in outcome.declined] == ["b"]
    assert outcome.figures()["deadlines_met"] == 0.5


def test_every_decision_costs_every_gang_a_pause() -> None:
    once = simulate(trace(("a", 0.0, 200.0)), NODES, Eager())
    paused = simulate(trace(("a", 0.0, 200.0), ("b", 100.0, 10.0), pause_s=2.0), NODES, Eager())
    assert once.jobs[0].finished_s == 200.0
    assert paused.jobs[0].finished_s > 202.0
    free = simulate(trace(("a", 0.0, 200.0), pause_s=2.0), NODES, Eager(), Settings(restart_cost_s=0.0))
    assert free.jobs[0].finished_s == 200.0


class Widening:
    """One device first, four when it is asked again."""

    def __call__(self, state: ClusterState) -> Round:
        (job,) = state.jobs
        seats = ("n0",) * (4 if job.seats else 1)
        kind = Resize if job.seats else Start
        return Round((kind(job.id, seats, Reason("x", "x")),), {}, {})


def test_a_restart_costs_what_the_new_size_costs() -> None:
    job = TraceJob("a", 0.0, RecordedJob(1000.0, 1), 1, 4, restart_costs={1: 0.0, 4: 25.0})
    made = Trace("t", "test", [job], 60.0, 7.0, NODES)
    (done,) = simulate(made, NODES, Widening()).jobs
    assert done.finished_s == 1025.0
