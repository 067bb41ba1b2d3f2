"""How often usage is metered: at an interval that grows with its cost, within bounds, and after clocks were set."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.control.accounting import usage_meter
from fairlead.control.accounting.usage_meter import EVERY_S, MAX_EVERY_S, PAUSE_FACTOR, UsageMeter
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.quarantine import Quarantine
from fairlead.control.store import generations, ledger

from . import made
from .stores import Clock, Opened, a_job, run, submit


class Stopwatch:
    """Stands in for the module's ``time``: each measurement takes as long as the test says."""

    def __init__(self) -> None:
        self.now_s, self.each_s = 0.0, 0.0

    def monotonic(self) -> float:
        self.now_s += self.each_s
        return self.now_s


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    watch = Stopwatch()
    monkeypatch.setattr(usage_meter, "time", watch)
    return watch


@pytest.fixture
def meter(db: Opened, clock: Clock, stopwatch: Stopwatch) -> UsageMeter:
    return UsageMeter(db.store, GangRegistry({}, {}, {}), dict, clock, Quarantine(db.store, clock))


def test_metering_is_due_after_the_interval_and_not_before(meter: UsageMeter, clock: Clock) -> None:
    meter.begin()
    assert not meter.due
    clock.advance(EVERY_S - 0.001)
    assert not meter.due
    clock.advance(0.001)
    assert meter.due
    run(meter.measure([]))
    assert not meter.due, "a measurement begins the next interval"


def test_metering_is_due_at_once_when_the_clock_was_set_back(meter: UsageMeter, clock: Clock) -> None:
    meter.begin()
    clock.advance(-3600.0)
    assert meter.due
    run(meter.measure([]))
    assert not meter.due


@pytest.mark.parametrize(
    ("took_s", "every_s"),
    [(0.0, EVERY_S), (EVERY_S / PAUSE_FACTOR, EVERY_S), (0.2, 0.2 * PAUSE_FACTOR), (10.0, MAX_EVERY_S)],
)
def test_dear_metering_is_rarer_and_never_rarer_than_a_minute(
    took_s: float, every_s: float, meter: UsageMeter, stopwatch: Stopwatch, clock: Clock
) -> None:
    stopwatch.each_s = took_s
    run(meter.measure([]))
    clock.advance(every_s - 0.01)
    assert not meter.due
    clock.advance(0.02)
    assert meter.due


def test_a_generation_that_ended_between_reading_and_writing_is_not_metered_twice(
    db: Opened, clock: Clock, meter: UsageMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(db, a_job("one", phase="running", id="one"))
    gang = made.generation(("w0", "node-0"), job=job.id, running_s=clock() - 20.0, metered_s=clock() - 10.0)
    db.write(generations.insert, gang)
    real, calls = usage_meter.generations_to_meter, list[int]()

    def to_meter(connection: Any, live: Any) -> Any:
        calls.append(1)
        return real(connection, live) if len(calls) == 1 else []

    monkeypatch.setattr(usage_meter, "generations_to_meter", to_meter)
    run(meter.measure(["one"]))
    assert len(calls) == 2 and db.read(ledger.hours_of_job, "one") == []
