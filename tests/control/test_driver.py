"""Pipelines in the store: large ones hold up no writer, and whatever a stage is said to have given can be shown."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection

from fairlead.control.identity import tokens as identity
from fairlead.control.pipelines import driver as control_pipelines
from fairlead.control.pipelines.driver import RECHECK_S, STEPS_AT_ONCE, Pipelines
from fairlead.control.pipelines.records import RUNNING, PipelineRecord, StageRecord
from fairlead.control.records import Role
from fairlead.control.service.pipelines import _detail
from fairlead.control.store import pipelines, tokens
from fairlead.pipelines.next_steps import StagePhase

from .stores import Clock, Opened, run

MANY = 120


def stored(db: Opened, stages: dict[str, dict[str, Any]], called: str = "flow-x", **states: Any) -> str:
    token, _ = identity.mint("vision", Role.MEMBER, "ann", None, 1_000_000.0)
    spec = {"name": "flow", "tenant": "vision", "stages": stages}
    made = PipelineRecord(called, "vision", "flow", RUNNING, 1_000_000.0, token.id, "digest", spec)
    own = [StageRecord(made.id, name, "vision", f"print-{name}", **states.get(name, {})) for name in sorted(stages)]

    def work(connection: Connection) -> str:
        tokens.insert(connection, token)
        return pipelines.insert(connection, made, own)[0].id

    return db.write(work)


def transactions(db: Opened, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many stages each transaction of the pipelines changed."""
    changed: list[int] = []
    real_write, real_update = db.store.write, pipelines.update_stage

    async def write(work: Any, **options: Any) -> Any:
        changed.append(0)
        return await real_write(work, **options)

    def update_stage(*given: Any, **changes: Any) -> None:
        changed[-1] += 1
        real_update(*given, **changes)

    monkeypatch.setattr(db.store, "write", write)
    monkeypatch.setattr(pipelines, "update_stage", update_stage)
    monkeypatch.setattr(control_pipelines, "MAX_PASS_S", 1e9)
    run(Pipelines(db.store, lambda: 1_000_001.0).advance())
    return changed


def test_a_pipeline_of_many_stages_is_started_in_bites(db: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(db, {f"s{n:03}": {"command": ["true"]} for n in range(MANY)})
    changed = transactions(db, monkeypatch)
    assert sum(changed) == MANY and max(changed) <= STEPS_AT_ONCE


def test_a_long_row_behind_a_failure_is_skipped_in_bites(db: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {f"s{n:03}": {"command": ["true"], "after": [f"s{n - 1:03}"] if n else []} for n in range(MANY)}
    stored(db, row, s000={"phase": StagePhase.FAILED, "message": "no"})
    changed = transactions(db, monkeypatch)
    assert sum(changed) == MANY - 1 and max(changed) <= STEPS_AT_ONCE
    found = db.read(lambda connection: pipelines.get(connection, "flow-x"))
    assert found is not None and found.phase == "failed"


ODD: tuple[Any, ...] = (["a list"], "text", 7, {"shown": 5, "bytes": "many", "plain": 1 << 80},
                        {"shown": {"a": 1}, "bytes": 1 << 80}, {"plain": {"x": 10**30}})  # fmt: skip


def test_whatever_a_stage_is_said_to_have_given_its_pipeline_is_shown(db: Opened) -> None:
    stored(db, {"a": {"command": ["true"]}}, a={"phase": StagePhase.SUCCEEDED})
    record = db.read(lambda connection: pipelines.get(connection, "flow-x"))
    assert record is not None
    for result in ODD:
        db.write(pipelines.update_stage, "flow-x", "a", result=result)
        shown = db.read(lambda connection: _detail(connection, record))
        assert shown.stages[0].state == "succeeded" and shown.model_dump_json()


def test_a_value_that_is_nested_too_deep_is_not_shown(db: Opened) -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    stored(db, {"a": {"command": ["true"]}}, a={"phase": StagePhase.SUCCEEDED, "result": {"plain": deep, "shown": "x"}})
    record = db.read(lambda connection: pipelines.get(connection, "flow-x"))
    assert record is not None
    (stage,) = db.read(lambda connection: _detail(connection, record)).stages
    assert stage.gave == "x" and stage.value is None and stage.model_dump_json()


def test_a_pipeline_of_before_the_bounds_is_still_read(db: Opened) -> None:
    names = [f"s{n:03}" for n in range(110)]
    stages = {name: {"command": ["true"], "after": names[:at]} for at, name in enumerate(names)}
    stages["odd"] = {"run": "a.py:f", "args": {"seed": 1 << 70}}
    stored(db, stages)
    record = db.read(lambda connection: pipelines.get(connection, "flow-x"))
    assert record is not None
    assert len(db.read(lambda connection: _detail(connection, record)).stages) == 111


def test_what_takes_longer_than_a_round_may_wait_goes_on_in_the_next_which_follows_at_once(
    db: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_pipelines, "MAX_PASS_S", 0.0)
    stored(db, {f"s{n:03}": {"command": ["true"]} for n in range(MANY)})
    woken: list[int] = []
    driver = Pipelines(db.store, lambda: 1_000_001.0, lambda: woken.append(1))
    handed_in = [len(run(driver.advance()) or ()) for _ in range(4)]
    assert handed_in == [50, 50, 20, 0] and len(woken) == 2


def test_the_writer_reads_no_whole_pipeline(db: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(db, {f"s{n:03}": {"command": ["true"]} for n in range(MANY)})
    real_write, real_read, writing = db.store.write, pipelines.stages_of, [False]

    async def write(work: Any, **options: Any) -> Any:
        def marked(connection: Connection) -> Any:
            writing[0] = True
            try:
                return work(connection)
            finally:
                writing[0] = False

        return await real_write(marked, **options)

    def stages_of(*given: Any) -> Any:
        assert not writing[0]
        return real_read(*given)

    monkeypatch.setattr(db.store, "write", write)
    monkeypatch.setattr(pipelines, "stages_of", stages_of)
    monkeypatch.setattr(control_pipelines, "MAX_PASS_S", 1e9)
    assert len(run(Pipelines(db.store, lambda: 1_000_001.0).advance()) or ()) == MANY


def test_pipelines_take_turns_and_whoever_waited_longest_is_next(db: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [stored(db, {"s": {"command": ["true"]}}, f"flow-{letter}") for letter in "abc"]
    monkeypatch.setattr(control_pipelines, "MAX_PASS_S", -1.0)  # one at a time
    every, driven = Pipelines(db.store, lambda: 1_000_001.0), list[str]()

    async def drive(name: str) -> set[str]:
        driven.append(name)
        return set()

    for _ in range(6):
        run(every.advance(drive=drive))
    assert sorted(driven[:3]) == sorted(names) and driven[3:] == driven[:3]


@pytest.fixture
def idle(db: Opened, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Pipelines:
    """The driver of three pipelines whose stages are all in progress."""
    monkeypatch.setattr(control_pipelines, "MAX_PASS_S", 1e9)
    for letter in "abc":
        stored(db, {"s": {"command": ["true"]}}, f"flow-{letter}")
    every = Pipelines(db.store, clock)
    run(every.advance())
    assert run(every.advance()) is None
    return every


def driven(every: Pipelines) -> list[str]:
    names: list[str] = []

    async def drive(name: str) -> set[str] | None:
        names.append(name)
        return await every.drive(name)

    run(every.advance(drive=drive))
    return names


def test_pipelines_without_news_are_checked_again_one_in_each_pass(idle: Pipelines, clock: Clock) -> None:
    clock.advance(RECHECK_S - 1.0)
    assert driven(idle) == []
    clock.advance(1.0)
    passes = [driven(idle) for _ in range(4)]
    assert [len(names) for names in passes] == [1, 1, 1, 0]
    assert sorted(name for names in passes for name in names) == ["flow-a", "flow-b", "flow-c"]


def test_a_clock_that_was_set_back_does_not_keep_pipelines_from_being_checked(idle: Pipelines, clock: Clock) -> None:
    clock.advance(-7200.0)
    assert len(driven(idle)) == 1


def test_a_pipeline_that_is_excluded_is_left_alone_whatever_happened_to_it(db: Opened, idle: Pipelines) -> None:
    for name in ("flow-a", "flow-b"):
        db.write(lambda connection, name=name: pipelines.update(connection, name, cancelled_by="ann"))
    names: list[str] = []

    async def drive(name: str) -> set[str] | None:
        names.append(name)
        return set()

    assert run(idle.advance(exclude={"flow-a"}, drive=drive)) == set() and names == ["flow-b"]


def test_what_was_remembered_of_a_pipeline_that_ended_is_dropped(db: Opened, idle: Pipelines, clock: Clock) -> None:
    for letter in "abc":
        done = {"phase": "cancelled", "finished_s": clock()}
        db.write(lambda connection, name=f"flow-{letter}", done=done: pipelines.update(connection, name, **done))
    assert driven(idle) == [] and run(idle.running()) == []
    assert not (idle._specs or idle._idle or idle._turns or idle._cacheable)
