"""What jobs take, as seen in telemetry: the most memory, cores and network on average."""

from __future__ import annotations

from itertools import count

import pytest

from fairlead import wire
from fairlead.control.plans.workload_signature import MeasuredUsage


def told(cpu_s: float, memory: int, network: int, worker: str = "w0") -> wire.Telemetry:
    return wire.Telemetry(0.5, 10**9, [wire.WorkerUsage("job", worker, cpu_s, memory, network)])


def test_memory_is_the_most_and_the_rest_an_average_over_workers_and_time() -> None:
    clock = count(100.0, 10.0)
    measured = MeasuredUsage(lambda: next(clock))
    for cpu_s, memory, network in ((3.0, 500, 0), (8.0, 900, 1_000), (13.0, 700, 2_000)):
        measured.observe(told(cpu_s, memory, network))
    assert measured.facts("job") == pytest.approx({"used_memory": 900.0, "used_cpu": 0.5, "used_network": 100.0})
    measured.observe(told(0.0, 100, 0, "w1"))
    assert measured.facts("job")["used_cpu"] == pytest.approx(0.5), "one look at a newcomer says nothing"


def test_nothing_is_said_of_who_was_never_seen_or_is_forgotten() -> None:
    measured = MeasuredUsage()
    assert measured.facts("job") == {}
    measured.observe(told(1.0, 100, 0))
    assert measured.facts("job") == {"used_memory": 100.0}
    measured.forget("job")
    assert measured.facts("job") == {}
