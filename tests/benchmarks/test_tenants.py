"""What the benchmark of tenants reckons with, and one tiny row of it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from benchmarks import tenants, tenants_live
from benchmarks.reporter import Bench, write
from benchmarks.tenants_fifo import fifo
from benchmarks.tenants_figures import (
    due_of,
    figures,
    gaps,
    longest_empty,
    max_min,
    next_step_s,
    pooled,
    recoveries,
    summed,
    union,
    useful_s,
)  # fmt: skip
from benchmarks.tenants_reference import Promise, kept, level
from benchmarks.tenants_world import Ask, Course, Kill, LoggedCommands, Scene, Span, Work, need_s, play
from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.state import ClusterState, Hold, JobState, Preempt, Resize, Start

# ------------------------------------------------------------ the reference


def promise(name: str, deadline_s: float, run_s: float, *, tenant: str = "a", asked_s: float = 0.0,
            size: int = 1) -> Promise:  # fmt: skip
    return Promise(name, tenant, asked_s, deadline_s, {size: run_s})


def keeps(*promises: Promise, due: float = 1.0, devices: int = 4, deepest: int = 1, begin_s: float = 0.0) -> set[str]:
    names = {one.tenant for one in promises}
    dues = {name: [(0.0, due)] for name in names}
    return kept(promises, dues, devices, dict.fromkeys(names, deepest), begin_s=begin_s, turn_s=60.0)


def test_the_reference_keeps_what_fits_before_its_deadline_and_nothing_else() -> None:
    assert keeps(promise("now", 10.0, 10.0)) == {"now"}
    assert keeps(promise("late", 10.0, 10.5)) == set()


def test_the_reference_reckons_with_what_a_start_costs() -> None:
    assert keeps(promise("tight", 10.0, 10.0), begin_s=0.5) == set()
    assert keeps(promise("tight", 10.5, 10.0), begin_s=0.5) == {"tight"}


def test_a_tenant_with_half_a_device_waits_until_its_bucket_holds_the_rest() -> None:
    assert keeps(promise("half", 19.0, 10.0), due=0.5) == set()
    assert keeps(promise("half", 20.0, 10.0), due=0.5) == {"half"}


def test_a_bucket_is_no_deeper_than_the_largest_gang_times_a_turn() -> None:
    gang = promise("gang", 300.0, 50.0, size=2)
    assert keeps(gang, due=0.4, deepest=1) == set()
    assert keeps(gang, due=0.4, deepest=2) == {"gang"}


def test_the_earliest_deadline_goes_first_and_what_then_cannot_be_kept_is_dropped() -> None:
    assert keeps(promise("long", 12.0, 10.0), promise("short", 5.0, 4.0)) == {"short"}
    assert keeps(promise("long", 14.0, 10.0), promise("short", 5.0, 4.0)) == {"short", "long"}


def test_what_has_begun_is_not_stopped_for_an_earlier_deadline() -> None:
    assert keeps(promise("first", 30.0, 10.0), promise("then", 8.0, 4.0, asked_s=2.0)) == {"first"}


def test_no_more_devices_are_used_than_there_are_whoever_owns_them() -> None:
    three = [promise(name, 10.0, 10.0, tenant=name) for name in "abc"]
    assert len(keeps(*three, devices=2)) == 2


def test_an_elastic_job_takes_the_size_that_ends_it_soonest() -> None:
    one = Promise("elastic", "a", 0.0, 6.0, {1: 10.0, 2: 6.0})
    assert kept([one], {"a": [(0.0, 2.0)]}, 4, {"a": 1}, begin_s=0.0) == {"elastic"}
    assert kept([one], {"a": [(0.0, 1.0)]}, 4, {"a": 1}, begin_s=0.0) == set()


def test_what_does_not_fit_into_a_bucket_is_lost() -> None:
    fill, drawn = np.array([2.0, 2.0, 2.0, 0.0]), np.array([0.0, 0.0, 0.0, 3.0])
    assert level(fill, drawn, 3.0).tolist() == [2.0, 3.0, 3.0, 0.0]


# ------------------------------------------------------------ the figures


def ask(name: str, tenant: str = "a", *, kind: str = "single", at_s: float = 0.0, least: int = 1, most: int = 1,
        work_s: float = 10.0, deadline_s: float | None = None) -> Ask:  # fmt: skip
    return Ask(name, tenant, kind, at_s, least, most, work_s, deadline_s)


def course(*asks: Ask, devices: int = 4, long_s: float = 100.0, **weights: float) -> Course:
    found = Course(weights or {"a": 1.0, "b": 1.0}, devices, Span(0.0, long_s), {one.id: one for one in asks})
    found.step_s = {one.id: 1.0 for one in asks}
    return found


def test_what_is_due_is_divided_by_weight_among_tenants_that_can_use_it() -> None:
    weights = {"a": 1.0, "b": 1.0, "c": 2.0}
    assert max_min(weights, {"a": 1.0, "b": 9.0, "c": 9.0}, 8.0) == pytest.approx({"a": 1.0, "b": 7 / 3, "c": 14 / 3})
    assert max_min(weights, {"a": 9.0}, 8.0) == {"a": 8.0, "b": 0.0, "c": 0.0}
    assert max_min(weights, {}, 8.0) == {"a": 0.0, "b": 0.0, "c": 0.0}


def test_the_due_follows_submissions_and_ends() -> None:
    seen = course(ask("x", "a", most=4), ask("y", "b", at_s=10.0, most=4))
    seen.ended["x"] = 30.0
    dues = due_of(seen)
    assert summed(dues["a"], Span(0.0, 100.0)) == pytest.approx(10 * 4 + 20 * 2)
    assert summed(dues["b"], Span(0.0, 100.0)) == pytest.approx(20 * 2 + 70 * 4)


def test_time_without_a_device_counts_only_while_there_is_work() -> None:
    seen = course(ask("x", "a", at_s=10.0), ask("y", "b"))
    seen.ended["x"] = 60.0
    seen.held["x"] = [Span(15.0, 20.0), Span(40.0, 60.0)]
    assert longest_empty(seen, "a") == 20.0
    assert gaps(union([Span(0, 5), Span(4, 10)]), union([Span(1, 2), Span(8, 12)])) == [Span(0, 1), Span(2, 8)]


def test_a_step_that_is_done_again_is_useful_once() -> None:
    seen = course(ask("x", "a"), ask("c", "b", kind="command"))
    seen.steps["x"] = [(1.0, 1), (2.0, 2), (3.0, 2), (4.0, 3)]
    seen.worked["c"] = [(Span(0.0, 30.0), 1), (Span(40.0, 50.0), 1)]
    assert useful_s(seen, Span(0.0, 100.0)) == {"a": 3.0, "b": 0.0}
    seen.ended["c"] = 50.0
    assert useful_s(seen, Span(0.0, 100.0)) == {"a": 3.0, "b": 10.0}


def test_a_gang_recovers_with_its_next_step_and_must_only_if_it_fits_what_is_due() -> None:
    seen = course(ask("x", "a", most=4), ask("y", "b", most=4, least=2), ask("z", "b"), long_s=100.0)
    seen.steps["x"] = [(9.0, 1), (12.5, 2)]
    kill = Kill("node", 10.0, ["x", "y"], {"x": 1, "y": 1})
    of_x, of_y = recoveries(seen, kill, due_of(seen))
    assert (of_x.took_s, of_x.stepped, of_x.why_not) == (2.5, True, "")
    assert (of_y.took_s, of_y.stepped) == (90.0, False) and "2.00 are its due" in of_y.why_not
    assert pooled([of_x, of_y]) == (2.5, 2.5) and pooled([]) == (None, None)


def test_a_command_goes_on_when_it_is_at_work_again() -> None:
    seen = course(ask("c", "a", kind="command"))
    seen.worked["c"] = [(Span(0.0, 10.0), 1), (Span(12.0, 30.0), 1)]
    assert [next_step_s(seen, "c", at_s) for at_s in (5.0, 10.0, 40.0)] == [5.0, 12.0, None]


def test_a_missed_promise_tells_where_its_time_went() -> None:
    seen = course(ask("x", "a", deadline_s=30.0), ask("y", "b"), devices=1, a=1.0, b=1.0)
    seen.held["y"], seen.held["x"] = [Span(0.0, 25.0)], [Span(25.0, 40.0)]
    seen.worked["x"], seen.ended["x"] = [(Span(26.0, 36.0), 1)], 36.0
    found = figures(seen)
    (missed,) = found.missed
    assert (found.promises, found.kept, found.reference) == (1, 0, 1)
    assert missed.cause == "waited for its first device" and "others' unpromised" in missed.story
    assert missed.late_s == 6.0


def test_promises_count_when_their_deadline_lies_in_the_run() -> None:
    seen = course(ask("x", "a", deadline_s=101.0), ask("y", "b", deadline_s=50.0))
    seen.ended |= {"x": 20.0, "y": 50.0}
    found = figures(seen)
    assert (found.promises, found.kept) == (1, 1)


def test_device_time_between_two_generations_is_lost_to_changes() -> None:
    seen = course(ask("x", "a"), long_s=50.0)
    seen.held["x"] = [Span(0.0, 50.0)]
    seen.worked["x"] = [(Span(0.0, 20.0), 1), (Span(25.0, 50.0), 1)]
    assert figures(seen).lost_to_changes == pytest.approx(0.1)
    seen.kills = [Kill("worker", 20.0, ["x"], {"x": 0})]
    again = figures(seen)
    assert again.lost_to_changes == 0.0
    assert again.lost_to_kills == pytest.approx(0.1)


def test_what_a_job_needs_grows_as_its_tenants_share_gets_smaller() -> None:
    gang = ask("x", kind="rigid", least=2, most=2, work_s=2**0.9 * 10.0)
    assert [need_s(gang, devices) - 0.5 for devices in (4.0, 2.0, 1.0, 0.5)] == pytest.approx([10, 10, 20, 40])


# ------------------------------------------------------------ first come, first served

NODES = tuple(Node(f"n{at}", {DEVICE: 1.0}) for at in range(3))


def decided(*jobs: JobState) -> dict[str, object]:
    return {one.job: one for one in fifo(ClusterState(0.0, NODES, (), jobs)).decisions}


def test_nobody_overtakes_the_head_of_the_line() -> None:
    found = decided(JobState("large", "t", 1.0, 4, 4), JobState("small", "t", 2.0))
    assert all(isinstance(one, Hold) for one in found.values())
    found = decided(JobState("elastic", "t", 1.0, 1, 4), JobState("small", "t", 2.0))
    assert isinstance(found["elastic"], Start) and len(found["elastic"].seats) == 3


def test_a_gang_that_lost_a_worker_comes_before_the_line_or_goes_back_into_it() -> None:
    broken = JobState("broken", "t", 2.0, 2, 2, seats=("n0",), broken=True)
    found = decided(JobState("first", "t", 1.0), broken)
    assert isinstance(found["broken"], Resize) and found["broken"].seats == ("n0", "n1")
    assert isinstance(found["first"], Start)
    others = [JobState(f"j{at}", "t", 0.0, seats=(f"n{at}",)) for at in (1, 2)]
    assert isinstance(decided(broken, *others)["broken"], Preempt)


# ------------------------------------------------------------ a tiny row

TINY = Scene((1.0, 2.0), seed=2, seconds=45.0, machines=3)


@pytest.fixture(scope="module")
def tiny() -> Course:
    return play(TINY)


def test_a_run_is_timed_by_what_workers_do(tiny: Course) -> None:
    assert tiny.span.long_s == pytest.approx(45.0) and {kill.kind for kill in tiny.kills} == {
        "worker", "node", "control-plane"}  # fmt: skip
    assert tiny.ended and tiny.steps and not tiny.wrong and not tiny.failed and not tiny.doubled
    for job, spans in tiny.held.items():
        begun_s = tiny.asks[job].submitted_s
        assert all(begun_s <= one.from_s <= one.to_s <= tiny.span.to_s for one in spans)
    found = figures(tiny)
    assert 0.5 < found.used <= 1.0 and set(found.ratios) == {"t0", "t1"}
    assert {one.job for one in found.recoveries} <= set(tiny.asks)


def test_a_seed_is_played_again_exactly(tiny: Course) -> None:
    again = play(TINY)
    assert (again.ended, again.steps, again.held) == (tiny.ended, tiny.steps, tiny.held)


def test_each_policy_is_handed_the_same_jobs(tiny: Course) -> None:
    other = play(TINY, fifo)
    assert other.ended and other.preempts == 0
    both = set(tiny.asks) & set(other.asks)
    assert len(both) >= 6
    assert all(tiny.asks[job].work_s == other.asks[job].work_s and tiny.asks[job].kind == other.asks[job].kind
               for job in both)  # fmt: skip


def test_the_table_shows_each_row_beside_fifo_and_can_be_written(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    tenants._options(parser)
    given = parser.parse_args(["--rows", "2", "--seed", "3", "--seconds", "31"], argparse.Namespace(quick=True))
    bench = Bench("tenants", quick=True, given=given)
    tenants.run(bench)
    rows = {row.name: row for row in bench.rows}
    assert rows["2 equal: Jain of used / due"].peer == "FIFO"
    assert rows["2 equal: jobs lost or doubled"].value == 0.0
    write(tmp_path / "out.json", bench, {}, {})
    assert json.loads((tmp_path / "out.json").read_text())["details"]["2 equal fairlead"][0]["seed"] == 3


def test_one_run_of_one_row_can_be_chosen() -> None:
    parser = argparse.ArgumentParser()
    tenants._options(parser)
    chosen = ["--rows", "6w", "--seed", "7", "--no-fifo", "--policy", tenants.FIFO]
    alone = parser.parse_args(chosen, argparse.Namespace(quick=False))
    (part,) = tenants.parts(alone)
    assert (part.row, part.scene.seed, part.policy) == ("6w", 7, "benchmarks.tenants_fifo:fifo")
    assert tenants.named(part.policy) is fifo
    everything = parser.parse_args([], argparse.Namespace(quick=False))
    assert len(tenants.parts(everything)) == 2 * tenants.SEEDS * len(tenants.ROWS)


@pytest.mark.parametrize(("lasted_s", "leaving", "over"), [(5.0, False, True), (4.0, False, False), (5.0, True, False)])
def test_a_command_has_ended_when_its_time_is_over_and_nobody_stops_it(
    lasted_s: float, leaving: bool, over: bool
) -> None:
    ended: list[str] = []
    world: Any = SimpleNamespace(loop=SimpleNamespace(now_s=0.0, within=lambda *_: None), course=course(),
                                 end=ended.append)  # fmt: skip
    worker: Any = Mock(job="c", generation=1, environment={}, behaviour=Work(False, lasts_s=5.0),
                       leaving=leaving, cause=None)  # fmt: skip
    commands = LoggedCommands(world)
    commands.come(worker)
    world.loop.now_s = lasted_s
    commands.gone(worker)
    assert ended == (["c"] if over else [])
    assert world.course.worked["c"] == [(Span(0.0, lasted_s), 1)]


# ------------------------------------------------------------ live


def test_a_log_tells_of_each_step_once_and_again_if_it_is_done_again() -> None:
    told = tenants_live.lines("10.0 1 1\n10.1 2 1\n10.5 1 2\n13.0 3 2\n13.4 3 3\n13.5 3", 10.0)
    assert len(told) == 5
    assert [step for _, step in tenants_live.steps(told)] == [1, 2, 2, 3]
    spans = [(round(span.from_s, 3), round(span.to_s, 3), size) for span, size in tenants_live.at_work(told)]
    assert spans == [(0.0, 0.5, 2), (3.0, 3.4, 1)]
    assert tenants_live.ended_s(told, Work(True, 3)) == pytest.approx(3.4)


def test_a_command_that_starts_over_is_at_work_twice() -> None:
    told = tenants_live.lines("0.0 1 tick\n0.25 1 tick\n0.6 2 tick\n0.85 2 end\n")
    assert [span for span, _ in tenants_live.at_work(told)] == [Span(0.0, 0.25), Span(0.6, 0.85)]
    assert tenants_live.ended_s(told, Work(training=False)) == 0.85


def test_deadlines_follow_the_speed_that_was_measured() -> None:
    slow = tenants_live.stretched(ask("x", at_s=5.0, deadline_s=15.0), 1.5)
    assert (slow.work_s, slow.deadline_s) == (15.0, 20.0)
