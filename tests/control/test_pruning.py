"""What ended jobs leave behind goes when its time is up, and not a moment before."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairlead.agent.embedded.backend import LocalBackend
from fairlead.control.records import Generation, Job, JobPhase, Role, Token
from fairlead.control.retention import pruner as pruning_loop
from fairlead.control.retention.pruner import Pruner
from fairlead.control.service.core import Core
from fairlead.control.service.queries import QueryVerbs
from fairlead.control.store import bundles, events, jobs, metrics, tenants
from fairlead.errors import LostLeadership, NotFound, Unavailable
from fairlead.home import Home
from fairlead.safe_removal import Removal
from fairlead.views.jobs import ResultView
from tests.control import made
from tests.control.stores import Clock, Opened, a_job, left_by, run

DAY = 86400.0
PARTS = ("logs", "output", "code", "home", "tmp", "snapshots", "rendezvous", "etc")
CODE, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def keep(db: Opened, **retention: float) -> None:
    db.write(tenants.update, "vision", policy={"retention": retention})


def left(home: Home, job: str) -> list[str]:
    folder = home.job(job)
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def put(db: Opened, home: Home, name: str, finished_s: float | None, tenant: str = "vision", **fields: Any) -> Job:
    """A job with all that jobs leave behind; one without an end still runs."""
    files = {f"{part}/deep/{file}": b"x" for part in PARTS for file in ("er/none", "file")}
    job = left_by(db, home, a_job(name, tenant, finished_s=finished_s, started_s=1.0, step=2, **fields), files)
    db.write(metrics.append, job.id, 1, [{"step": 1, "loss": 0.5}])
    db.write(events.append, time_s=finished_s or 1.0, kind="job-succeeded", text="it ended", tenant=tenant, job=job.id)
    return job


# ---------------------------------------------------------------- working folders


def test_an_ended_job_keeps_only_logs_and_output_and_a_running_one_keeps_all(
    db: Opened, home: Home, pruner: Pruner
) -> None:
    ended, running = put(db, home, "ended", 5.0), put(db, home, "running", None)
    run(pruner.clean_ended())
    assert left(home, ended.id) == ["logs", "output"]
    assert len(left(home, running.id)) == 8
    run(pruner.clean_ended())
    assert left(home, ended.id) == ["logs", "output"]


def test_a_new_leader_cleans_what_ended_while_nobody_looked_and_leaves_strangers_alone(
    db: Opened, home: Home, pruner: Pruner
) -> None:
    found = [put(db, home, f"job-{number}", 5.0) for number in range(3)]
    (home.jobs / "not-a-job" / "code").mkdir(parents=True)
    (home.jobs / "file").write_text("x")
    run(pruner.sweep())
    assert [left(home, job.id) for job in found] == [["logs", "output"]] * 3
    assert left(home, "not-a-job") == ["code"]


def test_a_link_in_a_job_s_folder_leads_nowhere(db: Opened, home: Home, pruner: Pruner, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    job = put(db, home, "sly", 5.0)
    (home.job(job.id) / "home" / "link").symlink_to(precious)
    (home.job(job.id) / "linked").symlink_to(precious)
    run(pruner.clean_ended())
    assert left(home, job.id) == ["logs", "output"]
    assert (precious / "file").exists()


def test_a_folder_of_any_depth_is_removed(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    here = os.open(tmp_path / "deep", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert Removal(tmp_path / "deep").continue_for(60.0)
    assert list(tmp_path.iterdir()) == []


def test_a_large_folder_goes_in_slices(tmp_path: Path) -> None:
    (tmp_path / "wide").mkdir()
    for number in range(300):
        (tmp_path / "wide" / str(number)).write_text("x")
    removal = Removal(tmp_path / "wide")
    assert not removal.continue_for(0.0)
    assert len(list((tmp_path / "wide").iterdir())) == 299
    assert removal.continue_for(60.0)
    assert Removal(tmp_path / "nowhere").continue_for(1.0), "what is not there is gone"


# ---------------------------------------------------------------- what is kept for a time


def test_without_a_retention_everything_stays(db: Opened, home: Home, pruner: Pruner, clock: Clock) -> None:
    job = put(db, home, "old", 5.0)
    clock.advance(1000 * DAY)
    run(pruner.prune())
    assert {"logs", "output"} <= set(left(home, job.id))
    assert db.read(metrics.history, job.id)


@pytest.mark.parametrize(
    ("kind", "gone"),
    [
        ("logs", lambda db, home, job: not (home.job(job) / "logs").exists()),
        ("results", lambda db, home, job: not (home.job(job) / "output").exists()),
        ("metrics", lambda db, home, job: not db.read(metrics.history, job)),
    ],
)
def test_each_kind_goes_when_its_own_time_is_up(
    db: Opened, home: Home, pruner: Pruner, clock: Clock, kind: str, gone: Callable[[Opened, Home, str], bool]
) -> None:
    keep(db, **{kind: 10 * DAY})
    old = put(db, home, "old", clock() - 11 * DAY)
    young = put(db, home, "young", clock() - 9 * DAY)
    running = put(db, home, "running", None)
    others = put(db, home, "others", clock() - 11 * DAY, tenant="text")
    run(pruner.prune())
    assert [gone(db, home, job.id) for job in (old, young, running, others)] == [True, False, False, False]
    rest = {"logs", "output"} - {"logs" if kind == "logs" else "", "output" if kind == "results" else ""}
    assert rest <= set(left(home, old.id)), "the other kinds stay"
    told = [event.text for event in db.read(events.after, 0, 100) if event.kind == "pruned"]
    assert told == [f"the {kind} of 1 job of vision were removed: they are kept for 10d"]
    run(pruner.prune())
    run(Pruner(db.store, home, clock).prune())  # the next leader
    assert len([event for event in db.read(events.after, 0, 100) if event.kind == "pruned"]) == 1
    clock.advance(2 * DAY)
    run(pruner.prune())
    assert gone(db, home, young.id)


def test_many_jobs_are_told_of_in_one_event(db: Opened, home: Home, pruner: Pruner, clock: Clock) -> None:
    keep(db, metrics=DAY)
    found = [put(db, home, f"job-{number}", 5.0) for number in range(60)]
    run(pruner.prune())
    assert not any(db.read(metrics.history, job.id) for job in found)
    (told,) = [event for event in db.read(events.after, 0, 1000) if event.kind == "pruned"]
    assert told.facts["jobs"] == 60


def test_code_that_no_job_needs_goes_with_the_results(db: Opened, home: Home, pruner: Pruner, clock: Clock) -> None:
    for digest in (CODE, OTHER):
        db.write(bundles.add, "vision", digest, 1, 1.0)
        home.bundle("vision", digest).parent.mkdir(parents=True, exist_ok=True)
        home.bundle("vision", digest).write_text("x")
    ended = a_job("ended", phase=JobPhase.SUCCEEDED, finished_s=clock() - 2 * DAY)
    waits = a_job("waits")
    db.write(jobs.insert, ended, {"code": CODE}, {}, None, "d")
    db.write(jobs.insert, waits, {"code": OTHER}, {}, None, "d")
    db.write(jobs.insert, a_job("plain"), {"command": ["true"]}, {}, None, "d")
    run(pruner.prune())
    keep(db, results=3 * DAY)
    run(pruner.prune())
    assert db.read(bundles.exists_for, "vision", CODE), "a job that ended lately may be handed in again"
    clock.advance(2 * DAY)
    run(pruner.prune())
    assert not db.read(bundles.exists_for, "vision", CODE) and not home.bundle("vision", CODE).exists()
    assert db.read(bundles.exists_for, "vision", OTHER) and home.bundle("vision", OTHER).exists(), "a job waits for it"


def test_code_goes_with_its_last_job_also_where_no_time_is_set_for_results(
    db: Opened, home: Home, pruner: Pruner, clock: Clock
) -> None:
    db.write(bundles.add, "vision", CODE, 1, 1.0)
    home.bundle("vision", CODE).parent.mkdir(parents=True, exist_ok=True)
    home.bundle("vision", CODE).write_text("x")
    ended = a_job("ended", phase=JobPhase.SUCCEEDED, finished_s=clock() - 2 * DAY)
    db.write(jobs.insert, ended, {"code": CODE}, {}, None, "d")
    keep(db, jobs=3 * DAY)
    run(pruner.prune())
    assert db.read(bundles.exists_for, "vision", CODE)
    clock.advance(2 * DAY)
    run(pruner.prune())
    assert db.read(jobs.get, ended.id) is None
    assert not db.read(bundles.exists_for, "vision", CODE) and not home.bundle("vision", CODE).exists()


def test_events_go_with_the_last_of_what_they_tell_of(db: Opened, home: Home, pruner: Pruner, clock: Clock) -> None:
    put(db, home, "old", clock() - 10 * DAY)
    keep(db, logs=DAY, results=20 * DAY)
    run(pruner.prune())
    kinds = [event.kind for event in db.read(events.after, 0, 100)]
    assert "job-succeeded" in kinds, "metrics are kept for ever, and so are the events"
    keep(db, logs=DAY, results=9 * DAY, metrics=DAY)
    run(pruner.prune())
    kinds = [event.kind for event in db.read(events.after, 0, 100)]
    assert "job-succeeded" not in kinds and set(kinds) == {"pruned"}


# ---------------------------------------------------------------- what the user reads


class Watching(QueryVerbs):
    """The verbs over one job that lost what it left behind."""

    def __init__(self, db: Opened, home: Home, job: Job) -> None:
        controller = SimpleNamespace(backend=LocalBackend(home), nodes={})
        super().__init__(cast(Core, SimpleNamespace(home=home, store=db.store, controller=controller)))
        self.found = job

    async def _find(self, who: Token, ref: str) -> tuple[Job, list[Generation]]:
        return self.found, []


def test_what_was_removed_is_told_as_removed(db: Opened, home: Home, pruner: Pruner, clock: Clock) -> None:
    keep(db, logs=DAY, results=DAY, metrics=DAY, jobs=100 * DAY)
    job = put(db, home, "old", 5.0)
    run(pruner.clean_ended())
    run(pruner.prune())
    assert not home.job(job.id).exists()
    watching, who = Watching(db, home, job), made.token(Role.MEMBER)
    for ask in (watching.log(who, job.id, {}, None, 10), watching.metrics(who, job.id),
                watching.artifact(who, job.id, "model")):  # fmt: skip
        with pytest.raises(NotFound, match="were removed: their retention time was over") as caught:
            run(ask)
        assert "--keep-" in str(caught.value.fix)


def test_a_result_lists_what_can_be_told_whatever_a_job_called_its_files(
    db: Opened, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = put(db, home, "odd", 5.0)
    output = home.job(job.id) / "output"
    for name in (b"bad\xff\xfe", b"line\nbreak", b"plain"):
        Path(os.fsdecode(os.fsencode(output) + b"/" + name)).write_text("x")
    listed = Watching(db, home, job)._artifacts(job)
    assert {"line\nbreak", "plain"} <= set(listed) and not any("bad" in name for name in listed)
    ResultView(job=job.id, state="succeeded", artifacts=listed, figures={}, spec={}).model_dump_json()
    monkeypatch.setattr("fairlead.control.service.queries.MAX_ARTIFACTS", 1)
    assert len(Watching(db, home, job)._artifacts(job)) <= 1


# ---------------------------------------------------------------- the loop


class Passes:
    """Runs the pruner's loop for some turns, on a clock that the test sets."""

    def __init__(self, pruner: Pruner, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pruner, self.clock, self.made_s = pruner, clock, list[float]()
        monkeypatch.setattr(pruner, "prune", self._prune)
        monkeypatch.setattr(pruning_loop.asyncio, "sleep", self._sleep)
        self.turns: list[float] = []
        self.error: Exception | None = None

    async def _prune(self) -> None:
        self.made_s.append(self.clock())
        if self.error is not None:
            raise self.error

    async def _sleep(self, seconds: float) -> None:
        if not self.turns:
            raise asyncio.CancelledError
        self.clock.advance(self.turns.pop(0))

    def after(self, *turns: float) -> int:
        """How many passes there were when the loop turned once more after each of these pauses."""
        self.turns, self.made_s = list(turns), []
        with contextlib.suppress(asyncio.CancelledError):
            run(self.pruner.run())
        return len(self.made_s)


def test_old_data_is_pruned_once_a_minute(pruner: Pruner, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes(pruner, clock, monkeypatch)
    assert passes.after(59.0) == 1
    assert passes.after(1.0, 59.0, 1.0) == 2, "a minute after the last pass, and a minute after that"


def test_pruning_goes_on_when_the_clock_was_set_back(
    pruner: Pruner, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes(pruner, clock, monkeypatch)
    assert passes.after(-86400.0, 1.0) == 2


def test_an_outage_of_the_store_does_not_end_the_pruner_and_a_lost_lease_does(
    pruner: Pruner, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes(pruner, clock, monkeypatch)
    passes.error = Unavailable("the store does not answer")
    assert passes.after(60.0, 60.0) == 3
    passes.error = LostLeadership("another control plane leads now")
    with pytest.raises(LostLeadership):
        passes.after(60.0)
