"""Setting aside: whose fault it is, for how long it rests, and what is not a job's error at all."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest
from sqlalchemy import String, literal, select
from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
)

from fairlead.control.reconcile import internal_errors
from fairlead.control.reconcile.cluster_state import cluster_state
from fairlead.control.reconcile.internal_errors import Backoff, must_propagate, run_forever
from fairlead.control.reconcile.quarantine import find_culprit
from fairlead.control.records import JobPhase
from fairlead.errors import InvalidSpec, LostLeadership, Unavailable
from tests.control import made
from tests.control.stores import Clock, Opened, run


def test_a_job_whose_facts_cannot_be_understood_keeps_what_it_holds() -> None:
    poison: dict[str, Exception] = {}
    bad, good = made.job(id="bad", facts={"only": 5}), made.job(id="good", phase=JobPhase.QUEUED)
    live = {"bad": [made.generation(("w0", "node-0"), ("w1", "node-1"), job="bad")]}
    state = cluster_state(0.0, [], [], {}, [bad, good], live, {}, frozenset(), {}, invalid_jobs=poison)
    held, waits = state.jobs
    assert (held.id, held.seats, held.frozen, held.elastic) == ("bad", ("node-0", "node-1"), True, False)
    assert waits.id == "good" and list(poison) == ["bad"]
    waiting = replace(bad, phase=JobPhase.QUEUED)
    aside = cluster_state(0.0, [], [], {}, [waiting, good], {}, {}, frozenset(), {}, quarantined={"bad"})
    assert [job.id for job in aside.jobs] == ["good"]


NAMES = ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("guilty", NAMES)
def test_the_one_with_which_it_fails_is_found_in_a_few_tries(guilty: str) -> None:
    tried: list[frozenset[str]] = []

    def works(some: frozenset[str]) -> bool:
        tried.append(some)
        return guilty not in some

    assert find_culprit(NAMES, works) == guilty
    assert len(tried) <= 4


def test_of_two_that_fail_only_together_it_is_the_later_one() -> None:
    assert find_culprit(NAMES, lambda some: not {"b", "d"} <= some) == "d"


def test_what_fails_without_anybody_is_nobodys_fault() -> None:
    assert find_culprit(NAMES, lambda some: False) is None
    assert find_culprit([], lambda some: True) is None


def test_who_failed_rests_for_twice_as_long_each_time_and_not_for_ever(clock: Clock) -> None:
    backoff = Backoff(clock)
    for tries, pause_s in enumerate((1.0, 2.0, 4.0, 8.0), 1):
        assert backoff.record_failure("x") == tries
        clock.advance(pause_s - 0.01)
        assert backoff.is_waiting("x") and backoff.waiting_names() == {"x"}
        clock.advance(0.02)
        assert not backoff.is_waiting("x")
    for _ in range(50):
        backoff.record_failure("x")
    clock.advance(internal_errors.LONGEST_PAUSE_S + 1)
    assert not backoff.is_waiting("x")
    assert backoff.record_failure("x") > 50
    backoff.record_success("x")
    assert not backoff.is_waiting("x") and len(backoff) == 0 and backoff.record_failure("x") == 1


def test_a_clock_that_is_set_back_holds_nobody_for_longer(clock: Clock) -> None:
    backoff = Backoff(clock)
    backoff.record_failure("x")
    clock.advance(-3600.0)
    assert not backoff.is_waiting("x")


def test_no_more_names_are_remembered_than_there_is_room_for(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internal_errors, "MAX_NAMES", 3)
    backoff = Backoff(clock)
    for name in ("a", "b", "a", "c", "d"):
        backoff.record_failure(name)
    assert backoff.waiting_names() == {"a", "c", "d"}


def test_lost_leadership_and_trouble_of_the_store_are_no_jobs_errors() -> None:
    cause = Exception()
    gone = ProgrammingError("", {}, cause, connection_invalidated=True)
    for error in (LostLeadership(""), Unavailable(""), OperationalError("", {}, cause), DatabaseError("", {}, cause),
                  InternalError("", {}, cause), InterfaceError("", {}, cause), gone):  # fmt: skip
        assert must_propagate(error)
    unbound = InterfaceError("", {}, sqlite3.InterfaceError("Error binding parameter 1 - probably unsupported type"))
    for error in (ValueError(), RecursionError(), InvalidSpec(""), DataError("", {}, cause), unbound,
                  IntegrityError("", {}, cause), ProgrammingError("", {}, cause)):  # fmt: skip
        assert not must_propagate(error)


def test_what_the_driver_cannot_bind_is_the_fault_of_whoever_wrote_it(db: Opened) -> None:
    with pytest.raises(Exception, match=r"(?i)type 'set'|adapt type 'set'") as raised:
        db.write(lambda connection: connection.execute(select(literal({1}, String()))))
    assert not must_propagate(raised.value)


def test_what_goes_on_beside_the_loop_begins_again_after_an_error_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internal_errors, "FIRST_PAUSE_S", 0.0)
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise ValueError("ours")
        raise LostLeadership("another leads")

    with pytest.raises(LostLeadership):
        run(run_forever("testing", work))
    assert begun == 3
