"""Why: told from what the last round said, with one look into the store; the future on request, by another process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import psutil
import pytest

from benchmarks.control_plane import full_cluster
from fairlead.control.foresight.process import CPU_S, FORECASTS, Foresight
from fairlead.control.plans.planner_process import InlinePlanner, PlannerFailed, PlannerProcess
from fairlead.control.reconcile.round_store import LastRound
from fairlead.control.records import GenerationPhase, JobPhase
from fairlead.control.service import why
from fairlead.control.store import generations, jobs
from fairlead.errors import RateLimited, Unavailable
from fairlead.scheduling.decide import decide
from fairlead.scheduling.state import ClusterState, Hold, Start
from fairlead.specs import parse_job
from tests.scheduling import clusters

from . import made
from .stores import a_job, submit
from .verbs import Asked

COMMAND = {"name": "maybe", "tenant": "vision", "command": ["true"]}


class Unasked(InlinePlanner):
    """Nobody is to ask it."""

    def ask(self, tenant: str, question: Any, kind: Any) -> Future[Any]:
        raise AssertionError("no question about the future was to be asked")


class Late(InlinePlanner):
    """Has no answer within its bounds."""

    def ask(self, tenant: str, question: Any, kind: Any) -> Future[Any]:
        failed: Future[Any] = Future()
        failed.set_exception(PlannerFailed("looking ahead took more than 10 s of computing"))
        return failed


def a_cluster() -> ClusterState:
    """Four devices: a gang on all of them that could be larger, and two that wait."""
    runs = clusters.job("runs", "vision", (1, 6), seats=tuple(f"node-{at}" for at in range(4)), since_s=-1e6,
                        speeds={4: 100.0}, remaining_samples=1e6)  # fmt: skip
    first = clusters.job("first", "text", (1, 1), submitted_s=50.0, remaining_samples=1e3, speeds={1: 10.0})
    then = clusters.job("then", "text", (6, 6), submitted_s=60.0, remaining_samples=1e3, finish_by_s=1e4)
    return clusters.state([runs, first, then], tenants=clusters.tenants(vision=1, text=1))


def told(asked: Asked, cluster: ClusterState) -> LastRound:
    """The platform once this round has been held."""
    made = decide(cluster)
    asked.controller.last_round = LastRound({}, {}).after(cluster, made, stored=False)
    return asked.controller.last_round


@pytest.fixture
def full(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A platform after a round about :func:`a_cluster`."""
    for name, tenant, phase in (
        ("runs", "vision", JobPhase.RUNNING), ("first", "text", JobPhase.QUEUED), ("then", "text", JobPhase.QUEUED)
    ):  # fmt: skip
        submit(asked.db, a_job(name, tenant, id=name, phase=phase, finish_by_s=2e6 if name == "then" else None))
    running = made.generation(("w0", "n0"), job="runs", number=1, phase=GenerationPhase.RUNNING, running_s=0.0)
    asked.db.write(generations.insert, replace(running, created_s=0.0))
    told(asked, a_cluster())
    asked.core.foresight = Foresight(Unasked())
    monkeypatch.setattr(why, "SOON_S", 0.0)
    return asked


def test_why_is_answered_from_the_round_with_one_look_into_the_store(
    full: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, store = [0], full.db.store
    really = store.read

    async def counted(work: Any) -> Any:
        looks[0] += 1
        return await really(work)

    monkeypatch.setattr(store, "read", counted)
    for name in ("runs", "first", "then"):
        looks[0] = 0
        said = full.controller.last_round.reasons[name]
        answer = full.ask(full.platform.why(full.admin, name))
        assert looks[0] == 1
        assert said.reason is not None and said.reason.text in answer.reason.text
        assert tuple(answer.unblocks) == said.would_help


def test_who_runs_on_what_it_has_is_told_what_keeps_it_from_growing(full: Asked) -> None:
    answer = full.ask(full.platform.why(full.guest, "runs")).reason
    assert "; now: " in answer.text and answer.facts["now"] == full.controller.last_round.reasons["runs"].reason.code  # type: ignore[union-attr]


def test_what_a_round_decided_and_was_carried_out_is_not_told_twice(full: Asked) -> None:
    newer = made.generation(("w0", "n0"), job="runs", number=2, phase=GenerationPhase.RUNNING, running_s=101.0)
    full.db.write(generations.insert, replace(newer, created_s=100.0))
    assert "; now: " not in full.ask(full.platform.why(full.guest, "runs")).reason.text


def test_others_jobs_ahead_are_counted_not_named(full: Asked) -> None:
    hold = full.controller.last_round.holds["then"]
    full.controller.last_round.holds = {"then": Hold("then", hold.reason, None, ("runs", "first"))}
    assert full.ask(full.platform.why(full.eve, "then")).ahead == ["a job of another tenant", "first"]
    assert full.ask(full.platform.why(full.admin, "then")).ahead == ["runs", "first"]


def test_a_job_of_which_no_round_knows_is_told_by_the_one_that_follows(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(why, "SOON_S", 30.0)
    submit(asked.db, a_job("first", "text", id="first"))

    async def play() -> str:
        asking = asyncio.create_task(asked.platform.why(asked.admin, "first"))
        await asyncio.sleep(0.05)
        assert not asking.done()
        asked.controller.publish()  # something else happened
        await asyncio.sleep(0.05)
        told(asked, a_cluster())
        asked.controller.publish()
        return (await asking).reason.text

    asked.controller._news = asyncio.Event()
    assert asked.ask(play()).startswith("needs 1 device")


def test_a_start_that_came_to_nothing_is_no_reason_to_wait(full: Asked) -> None:
    start = Start("first", ("node-0",), full.controller.last_round.holds["first"].reason)
    outlook = full.controller.last_round
    full.db.write(jobs.update, "first", since_s=200.0)
    full.controller.last_round = replace(
        outlook, holds={}, reasons={"first": replace(outlook.reasons["first"], decision=start)}
    )
    assert full.ask(full.platform.why(full.admin, "first")).reason.code == "undecided"


def test_the_future_is_told_on_request_only(full: Asked) -> None:
    plain = full.ask(full.platform.why(full.eve, "then"))
    assert (plain.expected_finish_s, plain.promise, plain.unforeseen) == (None, None, None)
    full.core.foresight = Foresight(InlinePlanner())
    ahead = full.ask(full.platform.why(full.eve, "then", forecast=True))
    assert ahead.reason == plain.reason
    assert ahead.unforeseen is None
    assert ahead.promise is not None
    assert full.ask(full.platform.why(full.guest, "runs", forecast=True)).promise is None


def test_a_forecast_without_an_answer_says_so_in_one_line(full: Asked) -> None:
    full.core.foresight = Foresight(Late())
    answer = full.ask(full.platform.why(full.eve, "then", forecast=True))
    assert answer.unforeseen == "looking ahead took more than 10 s of computing" and answer.reason.text
    rehearsed = full.ask(full.platform.dry_run(full.ann, parse_job(COMMAND)))
    assert rehearsed.admitted and rehearsed.reason.text.endswith("cannot be predicted: " + answer.unforeseen)


def test_a_promise_without_an_answer_is_refused_if_it_is_strict_and_taken_without_a_word_else(asked: Asked) -> None:
    asked.core.promises = Foresight(Late())
    deadline = {**COMMAND, "takes": "1m", "sla": {"deadline": "1h"}}
    taken, created = asked.ask(asked.platform.submit(asked.ann, parse_job(deadline), None))
    assert created and taken.promise is None
    strict = {**deadline, "sla": {"deadline": "1h", "strict": True}}
    with pytest.raises(Unavailable, match="can be kept: looking ahead took more than 10 s"):
        asked.ask(asked.platform.submit(asked.ann, parse_job(strict), None))


# ---------------------------------------------------------------- a huge state


@pytest.fixture
def huge(asked: Asked) -> Iterator[Asked]:
    asked.controller.last_round = replace(LastRound({}, {}), cluster=full_cluster(12_000))
    yield asked
    asked.core.foresight.close()


class Pulse:
    """The longest time for which the loop's own thread computed without a pause; no other load adds to it."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def beat(self) -> None:
        while True:
            begun_s = time.thread_time()
            await asyncio.sleep(0.005)
            self.longest_s = max(self.longest_s, time.thread_time() - begun_s)


def test_a_dry_run_over_a_huge_state_neither_blocks_the_loop_nor_exceeds_its_bound(huge: Asked) -> None:
    huge.core.foresight = Foresight(PlannerProcess(FORECASTS))

    async def play() -> tuple[Any, float, float]:
        pulse = Pulse()
        beating = asyncio.create_task(pulse.beat())
        begun_s = time.process_time()
        answer = await huge.platform.dry_run(huge.ann, parse_job(COMMAND))
        own_s = time.process_time() - begun_s
        beating.cancel()
        return answer, own_s, pulse.longest_s

    answer, own_s, longest_s = huge.ask(play())
    (child,) = [one for one in psutil.Process().children() if FORECASTS.questions in one.cmdline()]
    spent = child.cpu_times()
    assert answer.admitted and answer.expected_start_s is not None
    assert longest_s < 0.1 and own_s < 0.5, "the loop only sends the state"
    assert 0.2 < spent.user + spent.system < CPU_S + 2.0, "it was worked out there"
    assert child.nice() >= FORECASTS.nice


def test_a_dry_run_that_takes_more_is_ended_and_answered(huge: Asked) -> None:
    huge.core.foresight = Foresight(PlannerProcess(replace(FORECASTS, cpu_s=0.1)))
    answer = huge.ask(huge.platform.dry_run(huge.ann, parse_job(COMMAND)))
    assert answer.admitted and answer.reason.code == "not-known"
    assert answer.reason.text.endswith("looking ahead took more than 0.1 s of computing")


def test_one_tenant_has_only_so_many_questions_waiting(huge: Asked) -> None:
    huge.core.foresight = Foresight(PlannerProcess(replace(FORECASTS, cpu_s=0.1, most_waiting=2)))

    async def play() -> list[Any]:
        many = (huge.platform.dry_run(huge.ann, parse_job(COMMAND)) for _ in range(8))
        return await asyncio.gather(*many, return_exceptions=True)

    answers = huge.ask(play())
    refused = [one for one in answers if isinstance(one, RateLimited)]
    assert refused and len(refused) < 8 and "vision" in str(refused[0])
