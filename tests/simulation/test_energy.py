"""Energy in the simulator: nodes that may sleep save what they would have drawn, and waking costs time and power."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.cluster import DEVICE, Node
from fairlead.errors import InvalidSpec, Refused
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.market.energy import IDLE, energy_kwh, power, worth_sleeping_s
from fairlead.simulation.clusters import cluster
from fairlead.simulation.energy import Energy
from fairlead.simulation.engine import Settings, SimulationError
from fairlead.simulation.interference import read_table
from fairlead.simulation.outcome import Outcome
from fairlead.simulation.runs import run
from fairlead.simulation.trace import Clock, Trace, TraceJob
from fairlead.simulation.trace_formats.plain import ScaledJob, read

HOUR_S = 3600.0


def nodes(count: int = 4) -> list[Node]:
    return [
        Node(f"n{at}", {DEVICE: 2.0, "cpu": 4.0}, "v100", topology=(f"r{at // 2}", f"n{at}")) for at in range(count)
    ]


def line(*jobs: tuple[float, float, int], **fields: object) -> Trace:
    """Jobs as (arrival, seconds, devices), as fast on any nodes."""
    made = []
    for at, (arrival_s, seconds, devices) in enumerate(jobs):
        curve = SpeedCurve((devices,), {"v100": ((1.0,), (1.0,))})
        made.append(TraceJob(f"j{at}", arrival_s, ScaledJob(seconds, curve), devices, devices, **fields))  # type: ignore[arg-type]
    return Trace("line", "csv", made, 60.0, 0.0, clock=Clock.EVENTS)


def test_without_the_option_nothing_sleeps_and_the_figure_is_as_ever() -> None:
    trace = line((0.0, HOUR_S, 2), (5 * HOUR_S, HOUR_S, 2))
    outcome = run(trace, "fairlead", nodes())
    busy, idle = 4 * HOUR_S, 8 * 6 * HOUR_S - 4 * HOUR_S
    assert outcome.energy_kwh == pytest.approx(300.0 * (busy + IDLE * idle) / 3.6e6)


def test_what_a_node_says_that_it_draws_counts_whether_nodes_may_sleep_or_not() -> None:
    frugal = [replace(node, watts=(1.0, 10.0)) for node in nodes(1)]
    outcome = run(line((0.0, HOUR_S, 1)), "fairlead", frugal)
    assert outcome.energy_kwh == pytest.approx((10.0 + 1.0) / 1000)


def test_idle_nodes_sleep_and_the_figure_falls() -> None:
    trace = line((0.0, HOUR_S, 2), (0.0, 5 * HOUR_S, 2))
    awake = run(trace, "fairlead", nodes())
    rested = run(trace, "fairlead", nodes(), Settings(energy=Energy(600.0, 60.0)))
    assert rested.makespan_s == awake.makespan_s
    # two nodes sleep almost all the time, and one more after the first hour
    saved_kwh = 8 * 0.14 * 300 * 5 / 1000 * (2 + 0.7) / 4
    assert awake.energy_kwh - rested.energy_kwh == pytest.approx(saved_kwh, rel=0.15)


def test_who_is_seated_on_a_sleeping_node_waits_until_it_is_awake() -> None:
    trace = line((0.0, 10 * HOUR_S, 2), (5 * HOUR_S, 600.0, 2))
    rested = run(trace, "fairlead", nodes(2), Settings(energy=Energy(600.0, 90.0)))
    late = rested.jobs[1]
    assert late.jct_s == pytest.approx(690.0)
    assert run(trace, "fairlead", nodes(2)).jobs[1].jct_s == pytest.approx(600.0)


def test_power_is_as_the_node_says_or_as_its_type_draws() -> None:
    own = Node("a", {DEVICE: 1.0}, "v100", watts=(20.0, 200.0))
    assert (power(own).idle_w, power(own).busy_w) == (20.0, 200.0)
    assert power(nodes(1)[0]).busy_w == 300.0
    assert energy_kwh([own], {"a": HOUR_S}, {}, {}, 2 * HOUR_S) == pytest.approx(0.22)
    assert worth_sleeping_s(own) == 0.0


def test_a_gang_over_racks_runs_at_the_pace_its_curve_says() -> None:
    def taken(over: tuple[float, ...], count: int) -> float:
        speeds = ((0.0,), *((part,) for part in over))
        job = TraceJob("j", 0.0, ScaledJob(1_000.0, SpeedCurve((2 * count,), {"v100": speeds})), 2 * count, 2 * count)
        return run(Trace("t", "csv", [job], 60.0, 0.0, clock=Clock.EVENTS), "fairlead", nodes()).jobs[0].jct_s

    assert taken((1.0, 0.5), 2) == pytest.approx(1_000.0)
    assert taken((1.0, 0.5), 3) == pytest.approx(2_000.0)
    assert taken((1.0,), 3) == pytest.approx(1_000.0)


def company(policy_knows: bool) -> Outcome:
    """Two noisy jobs and two quiet ones, one after the other, on two nodes of four devices."""
    made = []
    for at, kind in enumerate(["noisy", "quiet", "noisy", "quiet"] * 3):
        curve = SpeedCurve((2,), {"v100": ((1.0,), (1.0,))})
        facts = {"class": kind}
        made.append(TraceJob(f"j{at:02d}", 10.0 * at, ScaledJob(2_000.0, curve), 2, 2, facts=facts))
    trace = Trace("t", "csv", made, 60.0, 30.0, clock=Clock.EVENTS)
    two = [Node(f"n{at}", {DEVICE: 4.0}, "v100") for at in range(2)]
    table = {("quiet", "noisy"): 0.4}
    return run(trace, "fairlead" if policy_knows else "fifo", two, Settings(colocation=table))


def test_gangs_that_share_a_node_slow_each_other_down_and_ours_learns_to_keep_them_apart() -> None:
    ours, blind = company(True), company(False)
    assert blind.makespan_s > 3 * 2_000.0 * 1.3
    assert ours.makespan_s < blind.makespan_s


def test_zones_labels_and_cores_come_from_files_and_residency_is_kept(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "- {type: v100, nodes: 2, devices: 2, rack: 1, zone: eu, cpu: 4, labels: [gdpr], watts: [30, 250]}\n"
        "- {type: v100, nodes: 1, devices: 2, zone: us, cpu: 4}\n"
    )
    where = cluster(str(tmp_path / "c.yaml"))
    assert {"eu", "gdpr"} <= where[0].places
    assert where[0].watts == (30.0, 250.0)
    (tmp_path / "jobs.csv").write_text(
        "arrival_s,duration_s,devices,only,near,cpu,class,over.nodes,over.racks\n"
        "0,100,2,us,,1,a,0.9,0.5\n0,100,2,us gdpr,eu,1,b,,\n0,100,4,gdpr,,,,,\n"
    )
    trace = read(tmp_path / "jobs.csv")
    outcome = run(trace, "fairlead", where, Settings(draw=True))
    seats = {job.id: {name for *_, some in job.segments for name in some} for job in outcome.jobs}
    places = {node.name: node.places for node in where}
    assert all("us" in places[name] for name in seats["0"])
    assert all("gdpr" in places[name] for name in seats["2"])
    (tmp_path / "jobs.csv").write_text("arrival_s,duration_s,devices,only\n0,100,4,us\n")
    with pytest.raises(Refused, match="in us"):
        run(read(tmp_path / "jobs.csv"), "fairlead", where)


def test_a_policy_that_breaks_residency_or_runs_out_of_cores_is_stopped() -> None:
    with pytest.raises(SimulationError, match="outside of n3"):
        run(line((0.0, 10.0, 1), only=frozenset({"n3"})), "fifo", nodes())
    with pytest.raises(SimulationError, match="more cpu"):
        run(line((0.0, 10.0, 2), demand={"cpu": 3.0}), "fifo", nodes())


def test_a_table_of_neighbours_is_read_and_nonsense_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("class,beside,slowdown\na,b,0.25\n")
    assert read_table(path) == {("a", "b"): 0.25}
    for text in ("a,b\n", "a,b,x\n", "a,b,1.5\n"):
        path.write_text(text)
        with pytest.raises(InvalidSpec):
            read_table(path)
