"""Seats, plan and rendezvous are chosen together, and what a plan does not use is given back."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fairlead import wire
from fairlead.agent.protocol import Backend, LaunchOrder, NotStarted
from fairlead.cluster import DEVICE, Gang, Member, Node
from fairlead.control.accounting import ledger
from fairlead.control.plans import plan_cache
from fairlead.control.plans.gang_plans import ROUND_WAIT_S, Plans
from fairlead.control.plans.model_profiles import store_profile
from fairlead.control.plans.plan_questions import ChooseQuestion, ChosenPlan, Model
from fairlead.control.plans.planner_process import InlinePlanner, Planner, PlannerFailed
from fairlead.control.reconcile import gang_actions, next_generation
from fairlead.control.reconcile.gang_executor import GangExecutor
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.gang_state_machine import GangView, WorkerFact
from fairlead.control.reconcile.next_generation import BETTER_PLAN, SeatedGang
from fairlead.control.reconcile.rendezvous import Rendezvous
from fairlead.control.reconcile.round_store import apply_round, read_state
from fairlead.control.reconcile.seats import seat_gangs
from fairlead.control.records import OFFERED, Generation, GenerationPhase, Job, JobPhase
from fairlead.control.store import events, generations, jobs
from fairlead.control.store import ledger as lines
from fairlead.planning.profiles import Calibration, to_plain
from fairlead.scheduling.decide import decide
from fairlead.scheduling.state import Reason
from tests.control import made
from tests.planning import made as planning

from .puppets import Body, Hurried, Platform, Says, honest, quick_loop
from .stores import Clock, Opened, a_job, run, submit

TIMED = Calibration(device="cpu", fixed_s=1e-4, sample_s=2e-6, optimizer_s=1e-4)
TINY = planning.model(3, batch=64, flops=1e4, parameters=2_000, calibration=TIMED)
ALONE = wire.Glance(3e-4, 1e-6, 1000.0)
"""What first passes show of a model for which one process is fastest."""

NODES = {f"node-{at}": Node(f"node-{at}", {"cpu": 4.0, "memory": 8e9, DEVICE: 2.0}) for at in range(2)}
FOUR = tuple(Member(f"w{at}", at, f"node-{at // 2}", at % 2) for at in range(4))
STARTS = Reason("started", "it starts")


@pytest.fixture
def url(new_sqlite: Path, tmp_path: Path) -> str:
    shutil.copy(new_sqlite, tmp_path / "fairlead.db")
    return f"sqlite:///{tmp_path}/fairlead.db"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with quick_loop(monkeypatch):
        yield


def told(plan_id: str, used: int) -> dict[str, Any]:
    return {"id": plan_id, "kind": plan_id, "plan": None, "workers_used": used, "reason": "", "chosen": "planner"}


# ---------------------------------------------------------------- before anything is sent


def test_a_generation_is_stored_with_plan_and_rendezvous_before_a_node_hears_of_it(db: Opened, quick: None) -> None:
    clock, seen = Hurried(), list[Generation]()

    async def play() -> None:
        platform = Platform(db.store, clock, planner=InlinePlanner())
        really = platform.backend.start

        async def start(gang: Gang, order: LaunchOrder, within_s: float) -> NotStarted | None:
            seen.append((await db.store.read(lambda connection: generations.of_job(connection, gang.job)))[-1])
            return await really(gang, order, within_s)

        platform.backend.start = start  # type: ignore[method-assign]
        async with platform:
            job = a_job("a", id="a", submitted_s=clock(), min_workers=2, max_workers=2)
            await db.store.write(lambda connection: store_profile(connection, job, wire.Profiled(to_plain(TINY)), 0.0))
            await platform.ended(await platform.submit(job))

    run(play())
    (stored,) = seen
    assert stored.plan is not None and (stored.plan["id"], stored.plan["chosen"]) == ("single", "planner")
    assert (len(stored.members), len(stored.at_work)) == (2, 1), "two were demanded, so two are held"
    assert Rendezvous.parse(stored.rendezvous) is not None
    assert db.read(generations.of_job, "a")[-1].plan == stored.plan, "and that is what it ran"


def test_a_plan_that_can_never_run_fails_the_job_before_anything_is_started(db: Opened, quick: None) -> None:
    clock = Hurried()
    whole = planning.model(1, limits=("one piece of code",), copies_only=True)

    async def play() -> Job:
        async with Platform(db.store, clock, planner=InlinePlanner()) as platform:
            job = a_job("a", id="a", submitted_s=clock(), min_workers=2, max_workers=2, facts={"plan": "pp"})
            await db.store.write(lambda connection: store_profile(connection, job, wire.Profiled(to_plain(whole)), 0.0))
            (ended,) = await platform.ended(await platform.submit(job))
            return ended

    ended = run(play())
    assert ended.phase is JobPhase.FAILED and "pp was asked for and cannot run" in (ended.message or "")
    assert db.read(generations.of_job, "a") == []


def test_a_gang_that_runs_is_not_failed_by_a_size_for_which_there_is_no_plan(db: Opened) -> None:
    job = submit(db, a_job("a", phase=JobPhase.RUNNING, generation=1, max_workers=4))
    newest = replace(made.generation(("w0", "node-0")), job=job.id, plan=told("single", 1))
    db.write(generations.insert, newest)
    gang = SeatedGang(job, FOUR, STARTS, newest, 4, ChosenPlan(None, refused="pp was asked for and cannot run"))
    assert db.write(next_generation.store_generation, gang, NODES, 5.0, set(), {}) is False
    after, (same,) = db.read(jobs.get, job.id), db.read(generations.of_job, job.id)
    assert after is not None and after.phase is JobPhase.RUNNING
    assert same.enough, "nor is it offered that again in each round"


def test_a_gang_gets_a_new_generation_with_the_same_workers_for_a_better_plan_only(db: Opened) -> None:
    job = submit(db, a_job("a", phase=JobPhase.RUNNING, generation=1, max_workers=4))
    newest = replace(made.generation(("w0", "node-0"), ("w1", "node-0")), job=job.id, plan=told("dp2", 2))
    db.write(generations.insert, newest)
    stays = SeatedGang(job, newest.members, STARTS, newest, choice=ChosenPlan(told("tp2", 2)))
    assert db.write(next_generation.store_generation, stays, NODES, 5.0, set(), {}) is False
    better = replace(stays, reason=Reason(BETTER_PLAN, "tp2 instead of dp2"))
    assert db.write(next_generation.store_generation, better, NODES, 5.0, set(), {}) is True
    _, new = db.read(generations.of_job, job.id)
    assert new.plan is not None and (new.plan["id"], new.workers) == ("tp2", newest.workers)
    after = db.read(jobs.get, job.id)
    assert after is not None and (after.generation, after.resizes) == (2, 0), "it did not change its size"


# ---------------------------------------------------------------- what is not used is given back


def until_told(clock: Hurried, glance: wire.Glance, end: asyncio.Event) -> Says:
    """Trains until the test says that it is done."""
    usual = honest(clock)

    def says(heard: wire.ToWorker | None) -> Sequence[Body]:
        if heard is None:
            return [wire.Ready(samples=64_000, epochs=1, batch_size=64, parameters=10_000, glance=glance)]
        said = usual(heard)
        return said[:1] if isinstance(heard, wire.Join) and not end.is_set() else said

    return says


def test_devices_that_the_plan_leaves_idle_go_back_and_are_not_given_again_in_each_round(
    db: Opened, quick: None
) -> None:
    clock = Hurried()

    async def play() -> int:
        async with Platform(db.store, clock, planner=InlinePlanner()) as platform:
            job = a_job("a", id="a", submitted_s=clock(), min_workers=1, max_workers=4, demand={})
            await platform.submit(job, until_told(clock, ALONE, asyncio.Event()))
            async with asyncio.timeout(30):
                while len(platform.backend.where("a")) != 1 or not await runs(platform):
                    await asyncio.sleep(0.01)
            held = 0
            for _ in range(12):
                rounds = platform.controller.last_round.decided_s
                platform.controller.nudge()
                while platform.controller.last_round.decided_s == rounds:
                    await asyncio.sleep(0.01)
                held = max(held, len(platform.backend.where("a")))
            return held

    async def runs(platform: Platform) -> bool:
        job = await db.store.read(lambda connection: jobs.get(connection, "a"))
        return job is not None and job.phase is JobPhase.RUNNING

    held = run(play())
    (only,) = db.read(generations.of_job, "a")
    assert held == 1 and len(only.members) == 1
    assert only.plan is not None and (only.plan["id"], only.plan[OFFERED]) == ("single", 4)


def test_who_gets_four_devices_and_uses_one_keeps_what_was_demanded(db: Opened) -> None:
    job = a_job("a", min_workers=2, max_workers=4)
    stored = next_generation.next_generation(
        SeatedGang(job, FOUR, STARTS, choice=ChosenPlan(told("single", 1), (2,))), NODES, 5.0, set()
    )
    assert [(m.worker, m.rank) for m in stored.members] == [("w2", 0), ("w0", 1)]
    assert [m.worker for m in stored.at_work] == ["w2"]
    rigid = replace(job, min_workers=4)
    whole = next_generation.next_generation(
        SeatedGang(rigid, FOUR, STARTS, choice=ChosenPlan(told("single", 1), (2,))), NODES, 5.0, set()
    )
    assert len(whole.members) == 4 and not whole.enough


def test_a_known_model_is_not_given_what_it_would_give_back(db: Opened, clock: Clock) -> None:
    job = submit(db, a_job("a", id="a", max_workers=4, demand={}))
    db.write(store_profile, job, wire.Profiled(to_plain(TINY)), 0.0)
    db.write(jobs.update, "a", total_steps=1_000_000, batch_size=64)
    plans = Plans(db.store, lambda: NODES, clock, planner=InlinePlanner())

    async def a_round(known: GangRegistry) -> dict[str, SeatedGang]:
        state = await read_state(db.store, clock(), NODES, known, frozenset(), None, plans.curve, plans.refresh)
        decided = decide(state.cluster)
        gangs = await plans.choose_plans(seat_gangs(state, decided), {})
        await db.store.write(lambda connection: apply_round(connection, state, decided, gangs))
        return gangs

    first = run(a_round(GangRegistry({}, {}, {})))
    assert [len(gang.members) for gang in first.values()] == [1], "its curve says that more bring nothing"
    now_s = clock()
    db.write(jobs.update, "a", phase=JobPhase.RUNNING)
    db.write(generations.update, "a", 1, phase=GenerationPhase.RUNNING, running_s=now_s, metered_s=now_s)
    sits = db.read(generations.of_job, "a")[0].members[0]
    there = {"a": {sits.worker: WorkerFact(sits.node, "joined", 1, sits.device)}}
    for _ in range(5):
        clock.advance(60.0)
        assert run(a_round(GangRegistry(dict(there), {}, {}))) == {}


def test_what_is_given_back_is_charged_until_then(db: Opened, clock: Clock) -> None:
    job = made.job(phase=JobPhase.STARTING, facts={"plan": "single"})
    planned = made.generation(("w0", "node-0"), ("w1", "node-1"), phase=GenerationPhase.PLANNED, running_s=None,
                              metered_s=None, created_s=clock() - 10.0)  # fmt: skip
    db.write(jobs.insert, job, {}, {}, None, "digest")
    db.write(generations.insert, planned)
    facts = {name: WorkerFact(f"node-{name[1]}", "ready") for name in ("w0", "w1")}
    known = GangRegistry({job.id: dict(facts)}, {}, {})
    hands = GangExecutor(db.store, cast(Backend, None), known, made.worker_order, dict, clock)
    action = gang_actions.BeginJoin(planned, None)
    run(hands.execute(action, GangView(job, [planned], facts, frozenset(), clock(), frozenset())))
    met = db.read(generations.of_job, job.id)[-1]
    assert [member.worker for member in met.members] == ["w0"]
    assert db.read(lines.attained, clock(), 1e12) == {"vision": pytest.approx(10.0, abs=0.01)}
    db.write(lambda c: ledger.meter_ended_generation(c, job, met, {}, clock() + 5.0, {}))
    assert db.read(lines.attained, clock() + 5.0, 1e12) == {"vision": pytest.approx(25.0, abs=0.01)}


# ---------------------------------------------------------------- a planner that is slow


class Slow(InlinePlanner):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Future[Any]]] = []

    def ask(self, tenant: str, question: Any, kind: Any) -> Future[Any]:
        self.asked.append((question, Future()))
        return self.asked[-1][1]

    def answer(self) -> None:
        for question, answer in self.asked:
            answer.set_result(question.answer())


def known_gangs(db: Opened, count: int, **fields: Any) -> dict[str, SeatedGang]:
    found = {}
    for at in range(count):
        job = submit(db, a_job(f"j{at}", id=f"j{at}", max_workers=2, facts={"model": "same", **fields}))
        members = tuple(Member(f"w{rank}", rank, f"node-{(at + rank) % 2}", 0) for rank in range(2))
        found[job.id] = SeatedGang(job, members, STARTS)
    db.write(store_profile, next(iter(found.values())).job, wire.Profiled(to_plain(TINY)), 0.0)
    return found


def test_a_round_waits_for_no_slow_planner_and_what_comes_late_is_there_the_next_time(db: Opened, clock: Clock) -> None:
    planner = Slow()
    plans, gangs = Plans(db.store, lambda: NODES, clock, planner=cast(Planner, planner)), known_gangs(db, 8)

    async def play() -> tuple[float, dict[str, SeatedGang], dict[str, SeatedGang]]:
        began_s = time.monotonic()
        late = await plans.choose_plans(gangs, {})
        took_s = time.monotonic() - began_s
        planner.answer()
        return took_s, late, await plans.choose_plans(gangs, {})

    took_s, late, soon = run(play())
    assert took_s < 4 * ROUND_WAIT_S, "all are waited for together"
    for gang in late.values():
        assert gang.choice is not None and gang.choice.plan is not None
        assert (gang.choice.plan["id"], gang.choice.plan["reason"]) == ("dp2", "whole copies: the planner is busy")
    assert {gang.choice.plan["id"] for gang in soon.values() if gang.choice and gang.choice.plan} == {"single"}
    assert len(planner.asked) == 1, "one question about one model on such devices, wherever they are"


def test_the_answers_that_nobody_has_asked_for_longest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "MOST", 2)
    planner = Slow()
    cache = plan_cache.PlanCache(cast(Planner, planner))
    margins = [0.1, 0.2, 0.1, 0.3, 0.1, 0.2]  # when 0.3 is asked, 0.2 was asked for longest ago
    for margin in margins:
        question = ChooseQuestion(Model({}, {}, {}), planning.hardware(2), "auto", margin)
        cache.ask("vision", question, ChosenPlan)
    assert [question.margin for question, _ in planner.asked] == [0.1, 0.2, 0.3, 0.2]


def test_a_failure_that_came_late_is_told_to_who_asks_next_and_then_the_model_rests(db: Opened, clock: Clock) -> None:
    planner = Slow()
    plans, gangs = Plans(db.store, lambda: NODES, clock, planner=cast(Planner, planner)), known_gangs(db, 1)

    async def play() -> list[str]:
        reasons = []
        for _ in range(3):
            (gang,) = (await plans.choose_plans(gangs, {})).values()
            assert gang.choice is not None and gang.choice.plan is not None
            reasons.append(gang.choice.plan["reason"])
            if not planner.asked[0][1].done():
                planner.asked[0][1].set_exception(PlannerFailed("it took too long"))
        return reasons

    assert run(play()) == [f"whole copies: {why}" for why in (
        "the planner is busy", "it took too long", "the planner failed with this model a moment ago")]  # fmt: skip
    assert [event.kind for event in db.read(events.after, 0, 50)].count("planner-failed") == 1


def test_a_plan_that_only_the_planner_can_make_is_waited_for(db: Opened, clock: Clock) -> None:
    plans = Plans(db.store, lambda: NODES, clock, planner=cast(Planner, Slow()))
    (gang,) = run(plans.choose_plans(known_gangs(db, 1, plan="tp"), {})).values()
    assert gang.choice is None, "it is asked for again before its ranks meet"


def test_an_error_about_one_gang_fails_no_other(db: Opened, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    plans, gangs = Plans(db.store, lambda: NODES, clock, planner=InlinePlanner()), known_gangs(db, 2)
    really = plans.known

    async def known(job: Job) -> Any:
        if job.id == "j0":
            raise ZeroDivisionError("a fault of ours")
        return await really(job)

    monkeypatch.setattr(plans, "known", known)
    failed: dict[str, Exception] = {}
    assert set(run(plans.choose_plans(gangs, failed))) == {"j1"}
    assert set(failed) == {"j0"}
