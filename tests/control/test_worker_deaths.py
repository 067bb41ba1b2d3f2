"""The death of a worker through the real store and loop: what it means for its job, also after a restart."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fairlead import wire
from fairlead.control.job_views import reason_of
from fairlead.control.reconcile.gang_state_machine import (
    AFTERMATH_S,
    GangView,
    MarkBroken,
    ReleaseWorkers,
    WorkerFact,
    next_action,
    next_change_s,
)
from fairlead.control.reconcile.worker_deaths import MOST_KEPT, judge_deaths, stored_deaths
from fairlead.control.records import Generation, GenerationPhase, Job, JobPhase
from fairlead.control.store import events, generations, jobs
from fairlead.recovery.deaths import Cause, Death
from fairlead.recovery.policy import OFTEN
from tests.control import made
from tests.control.puppets import WITHIN_S, Body, Hurried, Platform, Says, honest, quick_loop
from tests.control.stores import Opened, a_job, run, submit

SEGV = wire.Exited(None, int(signal.SIGSEGV))
KILL = wire.Exited(None, int(signal.SIGKILL))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with quick_loop(monkeypatch):
        yield


@pytest.fixture
def url(new_sqlite: Path, tmp_path: Path) -> str:
    """What is tried here is the loop; both sorts of stores are tried in files of their own."""
    shutil.copy(new_sqlite, tmp_path / "fairlead.db")
    return f"sqlite:///{tmp_path}/fairlead.db"


def dies(clock: Hurried, how: wire.Exited, at: type | None = None) -> Says:
    """Every worker dies at its start, or when it is told something of this kind."""
    usual = honest(clock)

    def says(told: wire.ToWorker | None) -> Sequence[Body]:
        return [how] if (told is None if at is None else isinstance(told, at)) else usual(told)

    return says


def patient(clock: Hurried) -> Says:
    """Joins and then waits for what the test has it say."""

    def says(told: wire.ToWorker | None) -> Sequence[Body]:
        match told:
            case None:
                return [wire.Ready(samples=1000, epochs=1, batch_size=10, parameters=10)]
            case wire.Join(generation=number):
                return [wire.Joined(number, 0)]
            case wire.Leave(generation=number):
                return [wire.Left(number, 0)]
            case _:
                return [wire.Exited(0)]

    return says


def silent(told: wire.ToWorker | None) -> Sequence[Body]:
    """Says nothing by itself."""
    return [wire.Exited(0)] if isinstance(told, wire.Quit) else []


async def seen(platform: Platform, job: str, wanted: Callable[[Job], bool]) -> Job:
    """The job, once it is as wanted."""
    until_s = time.monotonic() + WITHIN_S
    while True:
        found = await platform.store.read(lambda connection: jobs.get(connection, job))
        platform.lives()
        if found is not None and wanted(found):
            return found
        assert time.monotonic() < until_s, found
        await platform.controller.wait_for_news(0.05)


async def there(platform: Platform, condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < until_s
        await platform.controller.wait_for_news(0.05)


async def generations_of(platform: Platform, job: str) -> int:
    found = await platform.store.read(lambda connection: generations.of_job(connection, job))
    return len(found)


async def kinds(platform: Platform, job: str) -> list[str]:
    found = await platform.store.read(lambda connection: events.after(connection, 0, 1000))
    return [event.kind for event in found if event.job == job]


def running(job: Job) -> bool:
    return job.phase is JobPhase.RUNNING


@pytest.mark.parametrize(
    ("how", "at", "said"),
    [
        (SEGV, None, "was killed by SIGSEGV before step 1"),
        (SEGV, wire.Join, "was killed by SIGSEGV before step 1"),
        (wire.Exited(0), None, "ended with exit code 0 before step 1 without finishing"),
        (wire.Exited(0), wire.Join, "ended with exit code 0 before step 1 without finishing"),
        (wire.Exited(3), None, "ended with exit code 3 before step 1"),
        (wire.Exited(None, 9, "out-of-memory"), wire.Join, "ran out of memory before step 1"),
        (wire.Exited(None, 9, "disk-full", "its folder holds too much"), wire.Join, "its folder holds too much"),
        (KILL, None, "was killed by SIGKILL before step 1, 3 times in a row"),
        (KILL, wire.Join, "was killed by SIGKILL before step 1, 3 times in a row"),
    ],
)
@pytest.mark.parametrize("workers", [(1, 1), (1, 2), (2, 2)])
def test_a_job_that_kills_itself_fails_after_few_generations(
    db: Opened, how: wire.Exited, at: type | None, said: str, workers: tuple[int, int]
) -> None:
    async def play() -> None:
        clock = Hurried()
        async with Platform(db.store, clock) as platform:
            least, most = workers
            job = a_job("deadly", submitted_s=clock(), min_workers=least, max_workers=most)
            await platform.submit(job, dies(clock, how, at))
            (ended,) = await platform.ended(job.id)
            assert ended.phase is JobPhase.FAILED and said in (ended.message or ""), ended.message
            assert await generations_of(platform, job.id) <= 6

    run(play())


def test_retries_are_used_up_by_what_counts_and_told(db: Opened) -> None:
    async def play() -> None:
        clock = Hurried()
        async with Platform(db.store, clock) as platform:
            job = a_job("deadly", submitted_s=clock(), max_workers=1, retries=2)
            await platform.submit(job, dies(clock, SEGV, wire.Join))
            (ended,) = await platform.ended(job.id)
            assert (ended.phase, ended.failures) == (JobPhase.FAILED, 3)
            assert (await kinds(platform, job.id)).count("job-failing") == 3
            assert await generations_of(platform, job.id) == 3

    run(play())


def test_a_gang_goes_on_with_one_when_the_second_dies_at_its_start(db: Opened) -> None:
    async def play() -> None:
        clock = Hurried()
        async with Platform(db.store, clock) as platform:
            job = a_job("lopsided", submitted_s=clock(), min_workers=1, max_workers=2)
            await platform.submit(job, silent)
            await there(platform, lambda: len(platform.backend.where(job.id)) == 2)
            platform.backend.say(job.id, "w1", SEGV)
            usual = patient(clock)  # all that come to take its place die, too
            platform.backend.scripts[job.id] = lambda told: [SEGV] if told is None else usual(told)
            platform.backend.say(job.id, "w0", wire.Ready(samples=1000, epochs=1, batch_size=10))
            found = await seen(platform, job.id, lambda job: len(job.deaths) >= 4 and not job.unanswered)
            assert running(found) and found.failures == 0 and all(death.spared for death in stored_deaths(found))
            times = [death.time_s for death in stored_deaths(found)]
            assert times[-1] - times[-2] >= 4.0, "it grows less and less often"
            assert (await kinds(platform, job.id)).count("generation-abandoned") >= 2
            alone = next(iter(platform.backend.where(job.id)))
            row = {"step": 100.0, "time_s": clock(), "loss": 1.0}
            number = platform.controller.gang_registry.workers_of(job.id)[alone].generation
            for body in (wire.Progress(number, 100, 100, steps=[row]), wire.Finished(number, 100), wire.Exited(0)):
                platform.backend.say(job.id, alone, body)
            (ended,) = await platform.ended(job.id)
            assert ended.phase is JobPhase.SUCCEEDED

    run(play())


def test_what_others_cause_never_ends_a_job(db: Opened) -> None:
    async def play() -> None:
        clock = Hurried()
        async with Platform(db.store, clock) as platform:
            training = a_job("unlucky", submitted_s=clock(), max_workers=1)
            command = a_job("chased", submitted_s=clock(), max_workers=1, training=False, elastic=False)
            for job in (training, command):
                await platform.submit(job, patient(clock))
            for _ in range(6):
                for job in (training, command):
                    await seen(platform, job.id, running)
                for node in {node for job in (training, command) for node in platform.backend.where(job.id).values()}:
                    platform.backend.lose(node)
                    platform.backend.join(node)
                for job in (training, command):
                    await seen(platform, job.id, lambda job: not running(job))
            for job in (training, command):
                found = await seen(platform, job.id, running)
                assert found.failures == 0
                assert {death.cause for death in stored_deaths(found)} == {Cause.NODE_LOST}

    run(play())


def test_a_command_whose_peer_was_lost_with_its_node_is_not_blamed(db: Opened) -> None:
    async def play() -> None:
        clock = Hurried()
        async with Platform(db.store, clock) as platform:
            job = a_job("pair", submitted_s=clock(), min_workers=2, max_workers=2, training=False, elastic=False,
                        demand={"cpu": 3.0})  # fmt: skip
            await platform.submit(job, patient(clock))
            await seen(platform, job.id, running)
            places = platform.backend.where(job.id)
            assert len(set(places.values())) == 2
            platform.backend.say(job.id, "w1", wire.Exited(1))  # its peer does not answer any more
            platform.backend.lose(places["w0"])
            found = await seen(platform, job.id, lambda job: not running(job))
            assert found.then is not JobPhase.FAILED and found.failures == 0
            again = await seen(platform, job.id, running)
            assert again.failures == 0

    run(play())


def test_a_full_disk_before_the_start_is_tried_again_until_there_is_room(db: Opened) -> None:
    async def play() -> None:
        clock = Hurried()
        async with Platform(db.store, clock) as platform:
            job = a_job("cramped", submitted_s=clock(), max_workers=1)
            no_room = wire.Exited(None, None, "no-room", "No space left on device")
            await platform.submit(job, dies(clock, no_room))
            found = await seen(platform, job.id, lambda job: len(job.deaths) >= 4 and job.phase is JobPhase.QUEUED)
            assert found.failures == 0
            why = reason_of(found, None, None, None)
            assert why is not None and why.code == "back-off"
            assert "could not be started because the disk was full" in why.text and "until" in why.text
            platform.backend.scripts[job.id] = honest(clock)
            (ended,) = await platform.ended(job.id)
            assert ended.phase is JobPhase.SUCCEEDED
            assert "job-backing-off" in await kinds(platform, job.id)

    run(play())


def test_the_count_and_the_back_off_outlast_the_control_plane(db: Opened) -> None:
    async def play() -> None:
        clock = Hurried()
        job = a_job("deadly", submitted_s=clock(), max_workers=1, retries=5)
        async with Platform(db.store, clock) as platform:
            await platform.submit(job, dies(clock, SEGV, wire.Join))
            before = await seen(platform, job.id, lambda job: job.failures == 5 and job.phase is JobPhase.QUEUED)
        assert before.back_off_until_s is not None
        created_s = before.back_off_until_s
        async with Platform(db.store, clock) as platform:
            platform.backend.scripts[job.id] = dies(clock, SEGV, wire.Join)
            (ended,) = await platform.ended(job.id)
            assert (ended.phase, ended.failures) == (JobPhase.FAILED, 6)
            found = await platform.store.read(lambda connection: generations.of_job(connection, job.id))
            assert found[-1].created_s >= created_s, "it was not started before its time"
            assert len(found) == 6

    run(play())


def test_deaths_while_nobody_leads_are_counted(db: Opened) -> None:
    """The node tells of them later, when the worker is gone already."""

    async def play() -> None:
        clock = Hurried()
        job = a_job("deadly", submitted_s=clock(), max_workers=1)
        async with Platform(db.store, clock) as platform:
            await platform.submit(job, patient(clock))
            await seen(platform, job.id, running)
            node = platform.backend.where(job.id)["w0"]
        platform = Platform(db.store, clock)
        platform.backend.adopt(wire.WorkerStatus(job.id, "w0", 0, 1, "gone"), node, pending=1)
        died_s = clock()
        platform.backend.say(job.id, "w0", SEGV)
        async with platform:
            (ended,) = await platform.ended(job.id)
            assert "was killed by SIGSEGV" in (ended.message or "")
            assert ended.finished_s == pytest.approx(died_s, abs=0.5), "not when a leader came to look"

    run(play())


def test_steps_in_between_let_a_doubtful_death_pass(db: Opened) -> None:
    async def play() -> None:
        clock = Hurried()
        async with Platform(db.store, clock) as platform:
            job = a_job("shaken", submitted_s=clock(), max_workers=1)
            await platform.submit(job, patient(clock))
            for step in range(1, 7):
                found = await seen(platform, job.id, running)
                worker = f"w{step - 1}"
                await there(platform, lambda worker=worker: worker in platform.backend.where(job.id))  # type: ignore[misc]
                row = {"step": float(step), "time_s": clock(), "loss": 1.0}
                platform.backend.say(job.id, worker, wire.Progress(found.generation, step, 100, steps=[row]))
                platform.backend.say(job.id, worker, KILL)
                await seen(platform, job.id, lambda job, step=step: len(job.deaths) == step)  # type: ignore[misc]
            assert (await seen(platform, job.id, running)).failures == 0

    run(play())


def test_a_job_whose_worker_dies_after_each_step_backs_off_in_the_end(db: Opened) -> None:
    async def play() -> None:
        clock = Hurried()
        step = 0

        def says(told: wire.ToWorker | None) -> Sequence[Body]:
            nonlocal step
            match told:
                case None:
                    return [wire.Ready(samples=10**6, epochs=1, batch_size=10, parameters=10)]
                case wire.Join(generation=number):
                    step += 1
                    row = {"step": float(step), "time_s": clock(), "loss": 1.0}
                    return [wire.Joined(number, 0), wire.Progress(number, step, 10**5, steps=[row]), KILL]
                case wire.Leave(generation=number):
                    return [wire.Left(number, step)]
                case _:
                    return [wire.Exited(0)]

        async with Platform(db.store, clock) as platform:
            job = a_job("restless", submitted_s=clock(), max_workers=1)
            await platform.submit(job, says)
            found = await seen(platform, job.id, lambda job: job.back_off_until_s is not None)
            assert found.failures == 0 and "SIGKILL" in (found.back_off_why or "")
            assert await generations_of(platform, job.id) > OFTEN

    run(play())


def test_only_what_is_needed_is_read_of_a_job_with_many_generations(db: Opened) -> None:
    job = submit(db, a_job("old"))
    for number in range(1, 61):
        at_s = 100.0 * number
        moments = {"created_s": at_s, "running_s": at_s, "broken_s": at_s + 50, "ended_s": at_s + 60}
        one = made.generation(("w0", "node-0"), job=job.id, number=number, phase=GenerationPhase.ENDED,
                              first_step=1 if number % 5 == 0 else None, **moments)  # fmt: skip
        db.write(generations.insert, one)
    assert db.read(generations.failures_before, job.id, 58) == [5750.0, 5650.0, 5550.0]
    assert db.read(generations.failures_before, job.id, 1) == []
    former = db.read(generations.previous, job.id, 58)
    assert former is not None and former.number == 57 and db.read(generations.previous, job.id, 1) is None

    def worked_s(stepped: bool, enough_s: float = 1e9, since_s: float = 0.0) -> float:
        return db.read(lambda connection: generations.worked_s(
            connection, job.id, since_s, 1e6, stepped=stepped, enough_s=enough_s
        ))  # fmt: skip

    assert (worked_s(False), worked_s(True)) == (60 * 50.0, 12 * 50.0)
    assert worked_s(False, since_s=5925.0) == 25.0 + 50.0
    assert worked_s(False, enough_s=100.0) == 100.0


def test_deaths_that_are_kept_have_a_bound(db: Opened) -> None:
    job = submit(db, a_job("stubborn", phase=JobPhase.RUNNING, retries=100))
    for number in range(1, 60):
        db.write(jobs.update, job.id, phase=JobPhase.RUNNING, generation=number)
        db.write(judge_deaths, db.read(jobs.get, job.id), [Death("w0", Cause.EXITED, number, "7")], 0, 100.0 + number)
    job = db.read(jobs.get, job.id)
    assert (job.failures, len(stored_deaths(job))) == (59, MOST_KEPT + 1)


# ---------------------------------------------------------------- when a verdict is asked for


def view(job: Job, generation: Generation, now_s: float = 100.0, **workers: WorkerFact) -> GangView:
    return GangView(job, [generation], workers, frozenset(), now_s, frozenset({"node-0", "node-1"}))


def stored_death(**changes: object) -> dict[str, object]:
    return msgspec.to_builtins(replace(Death("w1", Cause.EXITED, 1, "1", time_s=99.0), **changes))


PAIR = made.generation(("w0", "node-0"), ("w1", "node-1"))
HERE = WorkerFact("node-0", "joined", 1)
GONE = WorkerFact("node-1", "joined", 1, exited=True, cause="exited")


def test_the_exit_of_a_command_is_judged_when_a_lost_node_would_have_been_told() -> None:
    command = made.job(training=False, deaths=[stored_death()])
    early = view(command, PAIR, w0=HERE, w1=GONE)
    assert next_action(early) is None and next_change_s(early) == 99.0 + AFTERMATH_S
    later = next_action(view(command, PAIR, 99.0 + AFTERMATH_S, w0=HERE, w1=GONE))
    assert later == MarkBroken(PAIR, ("w1",))


@pytest.mark.parametrize(
    ("job", "generation"),
    [
        (made.job(deaths=[stored_death()]), PAIR),  # a Training is told by its library
        (made.job(training=False, deaths=[stored_death(cause=Cause.OUT_OF_MEMORY)]), PAIR),
        (made.job(training=False, deaths=[stored_death()]), made.generation(("w0", "node-0"), ("w1", "node-0"))),
        (made.job(training=False, deaths=[stored_death(time_s=500.0)]), PAIR),  # the clock was set back
    ],
)
def test_what_no_lost_node_can_have_caused_is_judged_at_once(job: Job, generation: Generation) -> None:
    assert next_action(view(job, generation, w0=HERE, w1=GONE)) == MarkBroken(generation, ("w1",))


def test_a_broken_generation_is_judged_again_when_more_is_known() -> None:
    broken = replace(PAIR, broken_s=98.0)
    touched = stored_death(worker="w0", cause=Cause.LOST_TOUCH, answered=True)
    waits = replace(HERE, phase="broken")
    lost = replace(GONE, cause=None)
    asked = next_action(view(made.job(deaths=[touched]), broken, w0=waits, w1=lost))
    assert asked == MarkBroken(broken, ("w1",)), "the node of its peer is lost: that explains it"
    told = [touched, stored_death(cause=Cause.NODE_LOST, answered=True)]
    assert next_action(view(made.job(deaths=told), broken, w0=waits, w1=lost)) == ReleaseWorkers(("w1",))
    untold = [stored_death(worker="w0", cause=Cause.KILLED, answered=True), stored_death(cause=Cause.CRASHED)]
    assert next_action(view(made.job(deaths=untold), broken, w0=GONE, w1=GONE)) == MarkBroken(broken, ("w0", "w1"))


def test_a_start_that_lost_a_worker_is_judged_and_mended() -> None:
    planned = made.generation(("w0", "node-0"), ("w1", "node-1"), phase=GenerationPhase.PLANNED, running_s=None)
    starting = WorkerFact("node-0", "starting")
    died = WorkerFact("node-1", "starting", exited=True, cause="crashed")
    job = made.job(phase=JobPhase.STARTING)
    assert next_action(view(job, planned, w0=starting, w1=died)) == MarkBroken(planned, ("w1",))
    broken = replace(planned, broken_s=99.0)
    assert next_action(view(job, broken, w0=starting, w1=died)) == ReleaseWorkers(("w1",))
    assert next_action(view(job, broken, w0=starting)) is None, "a round finds out how it goes on"
