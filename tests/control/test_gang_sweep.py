"""Gangs are looked at when something happens or their time comes, and a slow sweep finds what was missed."""

from __future__ import annotations

from typing import cast

from sqlalchemy import Connection, event

from fairlead.agent.protocol import Backend
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.gang_state_machine import LEAVE_GRACE_S, STOP_GRACE_S, WorkerFact
from fairlead.control.reconcile.gang_sweep import SWEEP_S, GangSweep
from fairlead.control.reconcile.gang_timers import GangTimers
from fairlead.control.reconcile.gang_views import GangViews
from fairlead.control.reconcile.node_registry import NodeRegistry
from fairlead.control.records import GenerationPhase, JobPhase
from fairlead.control.store import generations, jobs
from tests.control import made
from tests.control.stores import Clock, Opened, run

COUNT = 60


class Swept:
    """So many gangs that run well on nodes of their own, and the sweep over them."""

    def __init__(self, db: Opened, clock: Clock, count: int = COUNT) -> None:
        self.db, self.clock = db, clock
        self.names = [f"gang-{number:03}" for number in range(count)]
        self.known = GangRegistry({}, {}, {})
        db.write(self._store)
        for name in self.names:
            self.known.workers[name] = {"w0": WorkerFact(f"node-of-{name}", "joined", 1)}
        roster = NodeRegistry(db.store, cast(Backend, None), self.known, clock)
        self.timers = GangTimers()
        self.views = GangViews(db.store, self.known, roster, clock)
        self.sweep = GangSweep(db.store, self.views, roster, self.timers, clock)

    def _store(self, connection: Connection) -> None:
        for name in self.names:
            jobs.insert(connection, made.job(id=name, generation=1), {"name": "mlp"}, {}, None, "d")
            generations.insert(connection, made.generation(("w0", f"node-of-{name}"), job=name))

    def look(self, busy: frozenset[str] = frozenset()) -> set[str]:
        return run(self.sweep.jobs_with_work(busy))

    def lose(self, name: str) -> None:
        """Its worker is gone, and nobody was told to look."""
        self.known.workers[name]["w0"] = WorkerFact(f"node-of-{name}", "joined", 1, exited=True)


def test_all_gangs_are_looked_at_at_first_and_after_a_change_of_nodes(db: Opened, clock: Clock) -> None:
    swept = Swept(db, clock)
    swept.lose("gang-007")
    assert swept.look() == {"gang-007"}
    swept.lose("gang-008")
    assert swept.look() == set(), "nothing said that it had to be looked at"
    swept.sweep.sweep_at_once()
    assert swept.look(busy=frozenset({"gang-007"})) == {"gang-008"}


def test_a_gang_that_was_forgotten_is_found_before_the_second_sweep_ends(db: Opened, clock: Clock) -> None:
    swept = Swept(db, clock)
    swept.look()
    swept.lose("gang-031")
    found: list[float] = []
    for second in range(int(2 * SWEEP_S)):
        clock.advance(1.0)
        if "gang-031" in swept.look():
            found.append(second)
    assert found and found[0] <= 2 * SWEEP_S


def test_a_sweep_is_spread_over_its_time(db: Opened, clock: Clock) -> None:
    swept = Swept(db, clock)
    for name in swept.names:
        swept.lose(name)
    assert len(swept.look()) == COUNT
    clock.advance(SWEEP_S)
    looked = []
    for _ in range(int(SWEEP_S)):
        looked.append(len(swept.look()))
        clock.advance(1.0)
    assert sum(looked) == COUNT and max(looked) <= 2 * COUNT / SWEEP_S + 1


def test_a_gang_on_its_way_out_is_looked_at_again_when_its_grace_is_over(db: Opened, clock: Clock) -> None:
    swept = Swept(db, clock, count=1)
    (name,) = swept.names
    stopping = {"phase": JobPhase.STOPPING, "then": JobPhase.SUCCEEDED, "outcome": "finished", "since_s": clock()}
    db.write(jobs.update, name, **stopping)
    assert swept.look() == set(), "its worker ends by itself"
    assert swept.timers.due(clock()) == set()
    clock.advance(STOP_GRACE_S)
    assert swept.timers.due(clock()) == {name}


def test_timers_run_out_in_time_once_and_at_once_when_the_clock_is_set_back() -> None:
    timers = GangTimers()
    timers.arm("a", 110.0, 100.0)
    timers.arm("a", 120.0, 100.0)
    timers.arm("b", 100.0 + LEAVE_GRACE_S, 100.0)
    timers.arm("gone", 101.0, 100.0)
    timers.clear("gone")
    assert (timers.next_s(), len(timers)) == (110.0, 2)
    assert timers.due(109.0) == set()
    assert timers.due(110.0) == {"a"}
    assert timers.due(110.0) == set()
    assert timers.due(50.0) == {"b"} and timers.next_s() is None


def test_one_gang_is_read_by_index_however_many_live(db: Opened, clock: Clock) -> None:
    """And many in a few statements."""
    swept = Swept(db, clock)
    statements: list[str] = []
    engine = db.store._engines.reader

    def note(_conn: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT"):
            statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    view = run(swept.views.view_of("gang-003"))
    assert view is not None and [each.job for each in view.generations] == ["gang-003"]
    assert len(statements) == 2
    statements.clear()
    assert len(run(swept.views.views_of(swept.names))) == COUNT
    assert len(statements) == 2
    if engine.dialect.name == "sqlite":
        plans = db.read(lambda c: c.exec_driver_sql(
            "EXPLAIN QUERY PLAN " + statements[0].replace("?", "'x'")).fetchall())  # fmt: skip
        told = " ".join(str(row) for row in plans)
        assert "SEARCH generations" in told and "job=?" in told and "ix_generations_phase" not in told


def test_of_the_generations_of_a_job_only_those_that_live_are_in_its_view(db: Opened, clock: Clock) -> None:
    swept = Swept(db, clock, count=3)
    db.write(generations.update, "gang-001", 1, phase=GenerationPhase.ENDED, ended_s=clock())
    newer = made.generation(("w1", "node-1"), job="gang-001", number=2, phase=GenerationPhase.PLANNED, running_s=None)
    db.write(generations.insert, newer)
    view = run(swept.views.view_of("gang-001"))
    assert view is not None and [each.number for each in view.generations] == [2]
    assert db.read(generations.get, "gang-001", 1) is not None and db.read(generations.get, "gang-001", 3) is None
