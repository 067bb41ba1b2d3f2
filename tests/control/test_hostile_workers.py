"""No job's word, and no error of our own about one job, reaches the loop: the others go on, also after a restart."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from fairlead import wire
from fairlead.agent.protocol import NodeChange, NodeLost
from fairlead.control.accounting import ledger as control_ledger
from fairlead.control.accounting.usage_meter import UsageMeter
from fairlead.control.pipelines import quarantine as pipeline_quarantine
from fairlead.control.pipelines.driver import Pipelines
from fairlead.control.pipelines.quarantine import PipelineQuarantine
from fairlead.control.pipelines.records import RUNNING, PipelineRecord, StageRecord
from fairlead.control.plans.model_profiles import model_key
from fairlead.control.plans.planner_process import InlinePlanner
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.node_registry import NodeRegistry
from fairlead.control.reconcile.quarantine import Quarantine
from fairlead.control.records import Job, JobPhase, KnownModel
from fairlead.control.store import events, generations, jobs, known_models, ledger, metrics, pipelines, policy_memory
from fairlead.planning.profiles import to_plain
from tests.control import made
from tests.control.puppets import Body, Hurried, Platform, Says, honest, quick_loop
from tests.control.stores import Clock, Opened, a_job, run, submit
from tests.control.test_gang_plans import TINY


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with quick_loop(monkeypatch):
        yield


@pytest.fixture
def url(new_sqlite: Path, tmp_path: Path) -> str:
    """What is tried here is the loop; both sorts of stores are tried in files of their own."""
    shutil.copy(new_sqlite, tmp_path / "fairlead.db")
    return f"sqlite:///{tmp_path}/fairlead.db"


def waits(clock: Hurried, name: str, tenant: str = "vision", **fields: Any) -> Job:
    return a_job(name, tenant, **({"submitted_s": clock(), "max_workers": 1} | fields))


def after(clock: Hurried, moment: type | None, said: Sequence[Body]) -> Says:
    """An honest worker that says something else at one moment, before what it usually says then."""
    usual = honest(clock)

    def says(told: wire.ToWorker | None) -> Sequence[Body]:
        here = told is None if moment is None else isinstance(told, moment)
        return [*said, *usual(told)] if here else usual(told)

    return says


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


NO_TIME = to_plain(TINY) | {
    "layers": [{"name": "a"}], "calibration": {"device": "cpu", "fixed_s": 0, "sample_s": 0, "optimizer_s": 0},
}  # fmt: skip
MANIFEST = {"name": "bank", "version": "aaaa11" * 8, "rows": 0, "blocks": []}
ROW = {"step": 1.0, "loss": 1.0}
REFUSED: dict[str, tuple[type | None, Body]] = {
    "a pass without time": (None, wire.Ready(100, 1, 10, 10, glance=wire.Glance(0.0, 0.0, 0.0))),
    "a pass that never ends": (None, wire.Ready(100, 1, 10, 10, glance=wire.Glance(math.inf, 0.0, 0.0))),
    "a result nested deep": (wire.Join, wire.Finished(1, 0, value={"kind": "plain", "plain": nested(300)})),
    "a result without a kind": (wire.Join, wire.Finished(1, 0, value={"shown": {"not": "text"}})),
    "a result of bytes": (wire.Join, wire.Finished(1, 0, value={"kind": "plain", "plain": b"x"})),
    "a step at the end of time": (wire.Join, wire.Progress(1, 1, 3, steps=[ROW | {"time_s": 1e308}])),
    "more steps than time": (wire.Join, wire.Progress(1, 2**53 - 1, 2**53 - 1, steps=[ROW])),
    "thousands of metrics": (wire.Join, wire.Progress(1, 1, 3, steps=[ROW | {f"m{at}": 0.0 for at in range(5000)}])),
    "a generation out of bounds": (wire.Join, wire.Joined(2**63, 0)),
    "a lineage nested deep": (wire.Join, wire.Finished(1, 0, lineage={"x": nested(300)})),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_message_fails_its_own_job_with_one_line(db: Opened, name: str) -> None:
    clock = Hurried()
    moment, body = REFUSED[name]

    async def scene() -> None:
        async with Platform(db.store, clock) as platform:
            bad = await platform.submit(waits(clock, "bad"), after(clock, moment, [body]))
            good = await platform.submit(waits(clock, "good", "text"))
            one, other = await platform.ended(bad, good)
            assert (one.phase, other.phase) == (JobPhase.FAILED, JobPhase.SUCCEEDED)
            assert "invalid message" in (one.message or "") and "\n" not in (one.message or "")

    run(scene())


@pytest.mark.parametrize("profile", [NO_TIME, to_plain(TINY) | {"batch_size": 2**31}], ids=["no-time", "batch-2^31"])
def test_a_profile_that_was_stored_holds_up_nobody_also_after_a_restart(db: Opened, profile: dict[str, Any]) -> None:
    clock = Hurried()
    facts = {"model": "m"}

    async def scene() -> None:
        async with Platform(db.store, clock) as platform:
            said = [wire.Joined(1, 0), wire.Profiled(profile)]
            bad = await platform.submit(waits(clock, "bad", max_workers=2, facts=facts), after(clock, wire.Join, said))
            await platform.ended(bad)
        async with Platform(db.store, clock) as platform:
            again = await platform.submit(waits(clock, "again", min_workers=2, facts=facts))
            good = await platform.submit(waits(clock, "good", "text"))
            ended = await platform.ended(again, good)
            assert [job.phase for job in ended] == [JobPhase.SUCCEEDED] * 2

    run(scene())


def test_times_that_a_worker_says_are_brought_between_its_submission_and_now(db: Opened) -> None:
    clock = Hurried()
    begun_s = clock()
    rows = [ROW | {"time_s": begun_s - 1e6}, ROW | {"step": 2.0, "time_s": begun_s + 1e6}]

    async def scene() -> list[dict[str, Any]]:
        async with Platform(db.store, clock) as platform:
            told = [wire.Joined(1, 0), wire.Progress(1, 2, 1, steps=rows)]
            job = await platform.submit(waits(clock, "a"), after(clock, wire.Join, told))
            await platform.ended(job)
            return await db.store.read(lambda connection: metrics.history(connection, job))

    times = [row["time_s"] for row in run(scene())]
    assert all(begun_s <= time_s <= clock() for time_s in times)


def test_no_step_lies_beyond_the_total(db: Opened) -> None:
    clock = Hurried()
    past = [wire.Joined(1, 0), wire.Snapshot(1, 100, "disk", 5, 1.0), wire.Finished(1, 100), wire.Exited(0)]
    rows = [{"step": 100.0, "time_s": clock(), "loss": 1.0}]
    less = [wire.Joined(1, 0), wire.Progress(1, 100, 100, steps=rows), wire.Ready(1, 1, 1, 1)]

    async def scene() -> None:
        async with Platform(db.store, clock) as platform:
            one = await platform.submit(waits(clock, "one"), after(clock, wire.Join, past))
            other = await platform.submit(waits(clock, "other"), after(clock, wire.Join, less))
            ended, _ = await platform.ended(one, other)
            assert (ended.phase, ended.step, ended.total_steps) == (JobPhase.SUCCEEDED, 3, 3)
            assert ended.snapshot_step <= 3
            (again,) = await platform.ended(other)
            assert not again.total_steps or again.step <= again.total_steps

    run(scene())


def test_what_is_said_again_and_again_is_one_event(db: Opened) -> None:
    clock = Hurried()
    again = [wire.Joined(1, 0), *[wire.Joined(1, at, resumed=True) for at in range(50)],
             *[wire.Profiled({}, 0.0, f"no {at}") for at in range(50)],
             *[wire.Finished(1, 3, made={"sets": [{"manifest": MANIFEST, "recipe": {}}]})] * 50]  # fmt: skip

    async def scene() -> None:
        async with Platform(db.store, clock) as platform:
            bad = await platform.submit(waits(clock, "bad"), after(clock, wire.Join, again))
            await platform.ended(bad)

    run(scene())
    kinds = [event.kind for event in db.read(events.after, 0, 1000)]
    assert [kinds.count(kind) for kind in ("generation-resumed", "planner-blind", "data-loaded")] == [1, 1, 1]


def test_a_refused_message_is_heard_by_nobody(db: Opened) -> None:
    clock = Hurried()
    bad_glance = wire.Ready(100, 1, 10, 10, glance=wire.Glance(0.0, 0.0, 0.0))

    async def scene() -> None:
        async with Platform(db.store, clock) as platform:
            bad = await platform.submit(waits(clock, "bad"), after(clock, None, [bad_glance]))
            await platform.ended(bad)
            assert bad not in platform.controller.plans._glances

    run(scene())


def test_parameters_that_cannot_be_sent_fail_their_job_and_not_the_platform(db: Opened) -> None:
    clock = Hurried()

    def order(connection: Connection, job: Job) -> wire.WorkerSpec:
        given = jobs.stored_spec(connection, job.id).get("params", {})
        return wire.WorkerSpec(job.id, job.tenant, None, "t.py:f", None, given, {}, None, None, 1.0)

    async def scene() -> None:
        async with Platform(db.store, clock, order) as platform:
            bad = await platform.submit(waits(clock, "bad"), document={"params": {"seed": 10**400}})
            good = await platform.submit(waits(clock, "good", "text"))
            one, other = await platform.ended(bad, good)
            assert (one.phase, other.phase) == (JobPhase.FAILED, JobPhase.SUCCEEDED)
            assert "parameters" in (one.message or "")

    run(scene())


# ---------------------------------------------------------------- errors of our own


POISON: dict[str, dict[str, Any]] = {
    "its state cannot be made": {"facts": {"only": 5}},
    "nobody can decide about it": {"demand": {"cpu": None}},
    "its speeds are none": {"speeds": {1: "fast"}},
    "no decision about it can be stored": {"next_worker": "x"},
}


@pytest.mark.parametrize("name", POISON)
def test_a_job_with_poisonous_facts_is_set_aside_and_fails_after_several_tries(db: Opened, name: str) -> None:
    clock = Hurried()

    async def scene() -> None:
        async with Platform(db.store, clock) as platform:
            bad = await platform.submit(waits(clock, "bad", **POISON[name]))
            good = await platform.submit(waits(clock, "good", "text"))
            one, other = await platform.ended(bad, good)
            assert (one.phase, other.phase) == (JobPhase.FAILED, JobPhase.SUCCEEDED)
            assert "the platform's own" in (one.message or "")

    run(scene())
    kinds = [event.kind for event in db.read(events.after, 0, 1000)]
    assert kinds.count("job-set-aside") == 4  # then it fails


def test_an_error_of_our_own_in_the_next_step_of_a_job_stays_with_it(db: Opened) -> None:
    clock = Hurried()

    def order(connection: Connection, job: Job) -> wire.WorkerSpec:
        if job.name == "bad":
            raise RuntimeError("a mistake of ours")
        return made.worker_order(connection, job)

    async def scene() -> None:
        async with Platform(db.store, clock, order) as platform:
            bad = await platform.submit(waits(clock, "bad"))
            good = await platform.submit(waits(clock, "good", "text"))
            one, other = await platform.ended(bad, good)
            assert (one.phase, other.phase) == (JobPhase.FAILED, JobPhase.SUCCEEDED)
            assert "RuntimeError" in (one.message or "") and "mistake" not in (one.message or "")

    run(scene())


def test_a_stored_profile_that_no_planner_understands_means_whole_copies_and_is_told(db: Opened) -> None:
    clock = Hurried()
    job = waits(clock, "poor", min_workers=2, max_workers=2, demand={"cpu": 1.0})
    rotten = KnownModel("vision", model_key(job), {"layers": [{"name": 5}]}, "", {}, {}, 0.0)
    db.write(known_models.put, rotten)

    async def scene() -> None:
        async with Platform(db.store, clock, planner=InlinePlanner()) as platform:
            await platform.submit(job)
            (ended,) = await platform.ended(job.id)
            assert ended.phase is JobPhase.SUCCEEDED

    run(scene())
    (generation,) = db.read(generations.of_job, job.id)
    assert generation.plan is not None
    assert "whole copies" in str(generation.plan["reason"])
    assert "planner-failed" in [event.kind for event in db.read(events.after, 0, 1000)]


@pytest.mark.parametrize("remembered", [
    {"finished": 7, "seen": []}, {"seen": {"gone-abc234": ["kind"]}}, {"seen": {"gone": ["kind", "much", 1.0, 1.0]}},
    {"accounts": {"vision": ["much"] * 9}}, {"promised": 5},
], ids=str)  # fmt: skip
def test_what_the_policy_remembers_and_cannot_be_decided_with_is_forgotten(
    db: Opened, remembered: dict[str, Any]
) -> None:
    clock = Hurried()
    db.write(policy_memory.save, remembered)

    async def scene() -> None:
        async with Platform(db.store, clock) as platform:
            good = await platform.submit(waits(clock, "good", "text"))
            (ended,) = await platform.ended(good)
            assert ended.phase is JobPhase.SUCCEEDED

    run(scene())


def test_a_pipeline_that_cannot_be_read_is_set_aside_and_fails_after_several_tries(db: Opened) -> None:
    clock = Hurried()
    record = PipelineRecord("rotten-abc234", "vision", "rotten", RUNNING, clock(), "tok", "d", {"stages": 5})
    db.write(pipelines.insert, record, [StageRecord(record.id, "only", "vision", "print")])

    async def scene() -> None:
        platform = Platform(db.store, clock)
        platform.controller.orchestrate = PipelineQuarantine(Pipelines(db.store, clock), db.store, clock).advance
        async with platform:
            good = await platform.submit(waits(clock, "good", "text"))
            (ended,) = await platform.ended(good)
            assert ended.phase is JobPhase.SUCCEEDED
            while (seen := await db.store.read(lambda connection: pipelines.get(connection, record.id))) is not None:
                platform.lives()
                if seen.phase == "failed":
                    break
                platform.controller.nudge()
                await platform.controller.wait_for_news(0.05)

    run(scene())
    kinds = [event.kind for event in db.read(events.after, 0, 1000)]
    assert kinds.count("pipeline-set-aside") == pipeline_quarantine.TRIES - 1
    failed = db.read(pipelines.get, record.id)
    assert failed is not None and failed.finished_s is not None and failed.finished_s >= record.submitted_s
    assert failed.message is not None and f"{pipeline_quarantine.TRIES} times in a row" in failed.message


def test_one_that_cannot_be_metered_is_set_aside_and_the_others_are_metered(
    db: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    now_s = clock()
    usage_lines = control_ledger.usage_lines

    def lines(job: Job, *given: Any) -> Any:
        if job.id == "bad":
            raise ValueError("ours")
        return usage_lines(job, *given)

    monkeypatch.setattr(control_ledger, "usage_lines", lines)
    for name in ("bad", "good"):
        job = submit(db, a_job(name, phase=JobPhase.RUNNING, id=name))
        one = made.generation(("w0", "node-0"), job=job.id, running_s=now_s - 20.0, metered_s=now_s - 10.0)
        db.write(generations.insert, one)
    quarantine = Quarantine(db.store, clock)
    meter = UsageMeter(db.store, GangRegistry({}, {}, {}), dict, clock, quarantine)
    run(meter.measure(["bad", "good"]))
    assert quarantine.held_jobs() == {"bad"}
    assert [line.device_s for line in db.read(ledger.hours_of_job, "good")] == [10.0]
    assert db.read(ledger.hours_of_job, "bad") == []


def test_a_change_of_a_node_is_kept_until_it_was_taken_in_and_the_other_nodes_go_on(
    db: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Hurried()
    failed: list[str] = []
    take = NodeRegistry.apply_change

    async def at_first_not(self: NodeRegistry, event: NodeChange) -> None:
        if isinstance(event, NodeLost) and len(failed) < 3:
            failed.append(event.node)
            raise ValueError("ours")
        await take(self, event)

    monkeypatch.setattr(NodeRegistry, "apply_change", at_first_not)

    async def scene() -> None:
        async with Platform(db.store, clock) as platform:
            first = await platform.submit(waits(clock, "first"))
            await platform.ended(first)
            platform.backend.lose("node-1")
            platform.backend.join("node-1")
            while not failed:
                await platform.controller.wait_for_news(0.05)
            good = await platform.submit(waits(clock, "good", "text"))
            await platform.ended(good)
            until_s = time.monotonic() + 20
            while len(await node_events()) < 3:
                platform.lives()
                assert time.monotonic() < until_s
                await platform.controller.wait_for_news(0.05)

    async def node_events() -> list[str]:
        found = await db.store.read(lambda connection: events.after(connection, 0, 1000))
        return [event.kind for event in found if event.node == "node-1"]

    run(scene())
    assert run(node_events()) == ["node-joined", "node-lost", "node-joined"]


DAMAGED: dict[str, tuple[str, bool]] = {
    "deaths are no JSON": ("deaths = 'no'", True), "a death says nothing": ("deaths = '[{}]'", True),
    "speeds are a number": ("speeds = '5'", True), "a rest without end": ("back_off_until_s = 'x'", True),
    "facts are a number": ("facts = '5'", False), "what then": ("\"then\" = 'nowhere'", True),
    "a demand of words": ("demand = '{\"cpu\": \"much\"}'", False),
    "a generation of no number": ("generation = 'x'", False),
}  # fmt: skip
"""What is damaged, and whether its job can go on."""


@pytest.mark.parametrize("phase", [JobPhase.QUEUED, JobPhase.RUNNING])
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_row_of_a_job_stops_nobody_else_and_is_told(db: Opened, name: str, phase: JobPhase) -> None:
    clock = Hurried()
    change, goes_on = DAMAGED[name]
    bad = waits(clock, "bad", id="bad-aaaaaa", phase=phase, generation=int(phase is JobPhase.RUNNING))
    submit(db, bad)
    if phase is JobPhase.RUNNING:
        moments = dict.fromkeys(("running_s", "created_s", "metered_s"), clock())
        db.write(generations.insert, made.generation(("w0", "node-0"), job=bad.id, **moments))
    db.sql(f"update jobs set {change} where id = 'bad-aaaaaa'")

    async def scene() -> None:
        async with Platform(db.store, clock) as platform:
            good = await platform.submit(waits(clock, "good", "text"))
            ended = await platform.ended(good, bad.id)
            assert ended[0].phase is JobPhase.SUCCEEDED
            assert goes_on or ended[1].phase is JobPhase.FAILED

    run(scene())
    told = db.read(events.after, 0, 1000)
    assert any(event.kind == "store-damaged" and "bad-aaaaaa" in event.text for event in told)
    assert goes_on or any(event.kind == "job-set-aside" for event in told)


@pytest.mark.parametrize("statement", [
    "insert into node_states(node, state) values('node-0', 'allow_idle')",
    "update tenants set policy = 'nonsense' where name = 'vision'",
    "update tenants set policy = '{\"jobs\": \"all\"}' where name = 'vision'",
    "update tenants set budget = '[1]' where name = 'vision'",
    "update tenants set budget = '{\"device_hours\": \"x\"}' where name = 'vision'",
    "update tenants set guarantee = '5' where name = 'vision'",
    "update tenants set guarantee = '{\"cpu\": \"x\"}' where name = 'vision'",
    "update tenants set weight = -1 where name = 'vision'",
    "insert into node_cursors(node, incarnation, sequence) values('node-0', 'i', 'x')",
])  # fmt: skip
def test_a_damaged_row_of_a_tenant_or_a_node_stops_nobody_and_is_told(db: Opened, statement: str) -> None:
    clock = Hurried()
    db.sql(statement)

    async def scene() -> None:
        async with Platform(db.store, clock) as platform:
            one = await platform.submit(waits(clock, "one"))
            good = await platform.submit(waits(clock, "good", "text"))
            ended = await platform.ended(one, good)
            assert [job.phase for job in ended] == [JobPhase.SUCCEEDED] * 2

    run(scene())
    assert "store-damaged" in [event.kind for event in db.read(events.after, 0, 1000)]


def test_a_generation_that_cannot_be_read_fails_its_job_alone(db: Opened) -> None:
    clock = Hurried()
    bad = submit(db, waits(clock, "bad", id="bad-aaaaaa", phase=JobPhase.RUNNING, generation=1))
    moments = dict.fromkeys(("running_s", "created_s", "metered_s"), clock())
    db.write(generations.insert, made.generation(("w0", "node-0"), job=bad.id, **moments))
    db.sql("update generations set members = '[{\"worker\": 1}]'")

    async def scene() -> None:
        async with Platform(db.store, clock) as platform:
            good = await platform.submit(waits(clock, "good", "text"))
            ended = await platform.ended(good, bad.id)
            assert [job.phase for job in ended] == [JobPhase.SUCCEEDED, JobPhase.FAILED]

    run(scene())
