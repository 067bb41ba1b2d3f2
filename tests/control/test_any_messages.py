"""Jobs of any kind whose workers say anything, in and out of turn, against the real loop; thousands in make explore."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from fairlead import wire
from fairlead.control.reconcile.worker_events import stop_changes
from fairlead.control.records import ENDED, Job, JobPhase, Role, Tenant, Token
from fairlead.control.service.submission import new_job
from fairlead.control.store import jobs, metrics
from fairlead.control.store.engine import Store
from fairlead.errors import InvalidSpec
from fairlead.planning.plan_choice import PLAN_FAMILIES
from fairlead.planning.profiles import to_plain
from fairlead.specs import JobSpec, parse_job
from tests.control.puppets import Body, Hurried, Platform, Says, honest, quick_loop
from tests.control.stores import Opened, a_job, run
from tests.control.test_accepted_profiles import PROFILES
from tests.control.test_gang_plans import TINY

EXAMPLES = int(os.environ.get("FAIRLEAD_EXAMPLES", "0"))

WHOLE = st.sampled_from([0, 1, 2, 3, 10, -1, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1])
GENERATION = st.sampled_from([1, 1, 1, 2, 0, 7]) | WHOLE
REAL = st.sampled_from([0.0, 1.0, 0.5, -1.0, 1e-300, 1e9, 1.8e9, 1e308, float("inf"), float("-inf"), float("nan")])
TEXT = st.sampled_from(["", "x", "\0", "x" * 3000, "\x1b]0;title\x07", "step", "time_s", "loss", "\u202e"])
PLAIN = st.recursive(
    st.none() | st.booleans() | WHOLE | REAL | TEXT | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.integers(0, 3), inner, max_size=3),
    max_leaves=8,
)


def _deep(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


ANY = PLAIN | st.builds(_deep, PLAIN, st.sampled_from([10, 60, 300]))
FIELDS = st.dictionaries(TEXT | st.sampled_from(["kind", "plain", "shown", "block", "bytes", "sets"]), ANY, max_size=4)
RESULT = FIELDS | st.builds(lambda value: {"kind": "plain", "plain": value, "shown": "?"}, ANY)
ROW = st.dictionaries(st.sampled_from(["step", "time_s", "loss", "epoch"]) | TEXT, REAL, max_size=5)
ROWS = st.lists(ROW, max_size=3)
GLANCE = st.none() | st.builds(wire.Glance, REAL, REAL, REAL)
BODIES = st.one_of(
    st.builds(wire.Ready, WHOLE, WHOLE, WHOLE, WHOLE, WHOLE, st.sampled_from([*PLAN_FAMILIES, "x"]), GLANCE),
    st.builds(wire.Joined, GENERATION, WHOLE),
    st.builds(wire.Progress, GENERATION, WHOLE, WHOLE, WHOLE, REAL, REAL, ROWS, REAL, REAL, REAL, st.booleans(), REAL),
    st.builds(wire.Left, GENERATION, WHOLE, st.booleans()),
    st.builds(wire.Broken, GENERATION, WHOLE, TEXT),
    st.builds(wire.Profiled, FIELDS | PROFILES, REAL, TEXT),
    st.builds(wire.Snapshot, GENERATION, WHOLE, TEXT, WHOLE, REAL, REAL),
    st.builds(wire.Finished, GENERATION, WHOLE, st.dictionaries(TEXT, REAL, max_size=3), st.lists(TEXT, max_size=3),
              RESULT, FIELDS, FIELDS),
    st.builds(wire.Raised, TEXT, TEXT, st.booleans(), st.lists(TEXT, max_size=3)),
    st.builds(wire.Exited, st.sampled_from([None, 0, 1, 255]), st.sampled_from([None, 9, 11, 15, 40]),
              st.sampled_from([None, "out-of-memory", "disk-full", "silent"]), TEXT),
)  # fmt: skip
MOMENTS: tuple[type | None, ...] = (None, wire.Join, wire.Leave)
SCRIPTS = st.fixed_dictionaries(
    {"said": st.dictionaries(st.sampled_from(MOMENTS), st.lists(BODIES, max_size=4), max_size=3),
     "goes_on": st.booleans()}
)  # fmt: skip
SPECS = st.fixed_dictionaries(
    {"name": st.just("any")},
    optional={
        "workers": st.sampled_from([1, 2, "1:2", "1:6", {"min": 2, "max": 4}]), "retries": st.integers(0, 3),
        "priority": st.sampled_from([-1000, 0, 1000]), "params": st.dictionaries(TEXT, PLAIN, max_size=2),
        "sla": st.sampled_from([{"class": "gold"}, {"deadline": "1s"}, {"deadline": "1h"}]),
        "resources": st.sampled_from([{"cpu": 0.001}, {"cpu": 1e300}, {"memory": 1}, {"gpu": 1}, {"device": "a100"}]),
        "plan": st.sampled_from(PLAN_FAMILIES), "takes": st.sampled_from([1e-9, 1.0, 1e300]),
        "workload": st.sampled_from(["training", "tuning", "inference", "batch"]),
        "placement": st.sampled_from([{"only": ["nowhere"]}, {"near": ["node-0"]}]),
        "labels": st.just({"a": "b"}), "silence_timeout": st.sampled_from([0, 1e300]),
    },
)  # fmt: skip
KIND = st.sampled_from([{"run": "t.py:f"}, {"command": ["true"]}])
JOBS = st.lists(st.tuples(SPECS, KIND, SCRIPTS), min_size=1, max_size=3)

ZEROS = {None: [wire.Ready(10, 1, 10, 10, glance=wire.Glance(0.0, 0.0, 0.0))]}
BEYOND = wire.Finished(1, 2**53)
FEWER = [wire.Joined(1, 0), wire.Progress(1, 100, 100, steps=[{"step": 100.0, "time_s": 1.8e9, "loss": 1.0}]),
         wire.Ready(1, 1, 1, 1), wire.Snapshot(1, 2**20, "disk", 5, 1.0), wire.Finished(1, 100),
         wire.Exited(0)]  # fmt: skip
STANDING = {wire.Join: [wire.Joined(1, 0), wire.Profiled(to_plain(TINY) | {"batch_size": 2**31})]}


@pytest.fixture
def url(new_sqlite: Path, tmp_path: Path) -> str:
    shutil.copy(new_sqlite, tmp_path / "fairlead.db")
    return f"sqlite:///{tmp_path}/fairlead.db"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with quick_loop(monkeypatch):
        yield


def played(clock: Hurried, script: dict[str, Any]) -> Says:
    """What the script says at each moment, and then what an honest worker would, or nothing."""
    usual = honest(clock)

    def says(told: wire.ToWorker | None) -> Sequence[Body]:
        moment = next((each for each in MOMENTS if each is not None and isinstance(told, each)), None)
        said = [body for body in script["said"].get(moment, ()) if _sendable(body)] if told is None or moment else []
        return [*said, *(usual(told) if script["goes_on"] else ())]

    return says


def _sendable(body: Body) -> bool:
    """Whether a worker could send it at all, and its node take it in."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=wire.FromWorker | wire.Exited)
    except (ValueError, TypeError, OverflowError, msgspec.MsgspecError):
        return False
    return True


def submitted(clock: Hurried, spec: dict[str, Any], kind: dict[str, Any]) -> tuple[Job, dict[str, Any]] | None:
    """The job as the door would store it; None for a spec that it refuses."""
    params = {} if "command" in kind else {"params": spec.get("params", {})}
    given = {name: value for name, value in spec.items() if name != "params"} | kind | params
    try:
        parsed: JobSpec = parse_job(given)
        tenant = Tenant("vision", 1.0, None, {}, 0, 0.0)
        job = new_job(parsed, tenant, Token("tok", "vision", Role.MEMBER, "", "", 0.0), clock())
        return job, msgspec.json.decode(parsed.model_dump_json(by_alias=True, exclude_none=True))
    except (InvalidSpec, ValueError, TypeError, OverflowError):
        return None


async def _cancel(store: Store, platform: Platform, names: Sequence[str]) -> None:
    """As its tenant would."""

    def work(connection: Connection) -> None:
        for name in names:
            job = jobs.get(connection, name)
            if job is None or job.phase in ENDED:
                continue
            changes = stop_changes(JobPhase.CANCELLED, "cancelled", "by its tenant", platform.clock())
            if job.phase is JobPhase.QUEUED:
                changes = {"phase": JobPhase.CANCELLED, "finished_s": platform.clock()}
            jobs.update(connection, name, **changes)

    await store.write(work)
    for name in names:
        platform.controller.nudge(name)


@settings(
    max_examples=EXAMPLES or 20, deadline=None, suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)  # fmt: skip
@example([({"name": "any"}, {"run": "t.py:f"}, {"said": ZEROS, "goes_on": True})])
@example([({"name": "any"}, {"run": "t.py:f"}, {"said": {wire.Join: [wire.Joined(1, 0), BEYOND]}, "goes_on": False})])
@example([({"name": "any"}, {"run": "t.py:f"}, {"said": {wire.Join: FEWER}, "goes_on": False})])
@example([({"name": "any", "workers": "1:2"}, {"run": "t.py:f"}, {"said": STANDING, "goes_on": True})])
@given(JOBS)
def test_whatever_jobs_say_the_loop_lives_and_the_others_end_well(
    db: Opened, several: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]
) -> None:
    clock = Hurried()

    async def scene() -> None:
        async with Platform(db.store, clock) as platform:
            bad = []
            for spec, kind, script in several:
                found = submitted(clock, spec, kind)
                if found is not None:
                    bad.append(await platform.submit(found[0], played(clock, script), found[1]))
            good = [await platform.submit(a_job("good", "text", submitted_s=clock(), max_workers=1)) for _ in range(2)]
            assert [job.phase for job in await platform.ended(*good)] == [JobPhase.SUCCEEDED] * 2
            await _cancel(db.store, platform, bad)
            for job in await platform.ended(*bad):
                rows = await db.store.read(lambda connection, job=job: metrics.history(connection, job.id))  # type: ignore[misc]
                assert all(job.submitted_s <= row["time_s"] <= clock() for row in rows if row.get("time_s") is not None)
                assert not job.total_steps or job.step <= job.total_steps
        async with Platform(db.store, clock) as platform:  # and again, with all that is stored by now
            late = await platform.submit(a_job("late", "text", submitted_s=clock(), max_workers=1))
            assert [job.phase for job in await platform.ended(late)] == [JobPhase.SUCCEEDED]

    run(scene())
