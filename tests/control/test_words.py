"""Whatever a tenant's workers say or die of, it harms their own job only: the control plane goes on."""

from __future__ import annotations

import math
from typing import Any

import pytest
from sqlalchemy import Connection

from fairlead import wire
from fairlead.agent.protocol import WorkerEvent
from fairlead.control.reconcile.worker_events import LONGEST_ERROR, store_events
from fairlead.control.records import Job, JobPhase
from fairlead.control.store import generations, jobs, nodes
from tests.control import made
from tests.control.stores import Opened


@pytest.fixture
def running(db: Opened) -> Opened:
    """A store with two running jobs."""

    def work(connection: Connection) -> None:
        for name in ("bad", "good"):
            jobs.insert(connection, made.job(id=name), {}, {}, None, "digest")
        generations.insert(connection, made.generation(("w0", "node-0"), job="bad"))

    db.write(work)
    return db


def said(job: str, sequence: int, body: Any) -> WorkerEvent:
    return WorkerEvent("node-0", "inc", sequence, 200.0, job, "w0", body)


def job(db: Opened, name: str) -> Job:
    found = db.read(lambda connection: jobs.get(connection, name))
    assert found is not None
    return found


@pytest.mark.parametrize(
    "body",
    [
        wire.Progress(1, 1, 9, steps=[{"loss": 1.0}]),
        wire.Progress(1, 1, 9, steps=[{"step": math.nan}]),
        wire.Progress(1, 1, 9, steps=[{"step": 1e300}]),
        wire.Progress(1, 1, 9, steps=[{"step": 1.0}, {"step": math.nan}]),
        wire.Progress(1, 1, 9, samples_per_s=math.nan, steps=[{"step": 1.0}]),
        wire.Progress(1, 2**64 - 1, 9, steps=[{"step": 1.0}]),
        wire.Progress(1, -5, 9, steps=[{"step": 1.0}]),
        wire.Ready(samples=2**62, epochs=2**62, batch_size=1),
        wire.Snapshot(1, 2**64 - 1, "disk", 1, 0.0),
        wire.Snapshot(1, 1, "disk", 1, math.nan),
        wire.Finished(1, 2**64 - 1),
    ],
)
def test_words_that_cannot_be_stored_fail_their_own_job_only(running: Opened, body: Any) -> None:
    good = wire.Progress(1, 3, 9, steps=[{"step": 3.0, "loss": 0.5}])
    running.write(lambda c: store_events(c, [said("bad", 1, body), said("good", 2, good)], 201.0))
    bad = job(running, "bad")
    assert (bad.phase, bad.then) == (JobPhase.STOPPING, JobPhase.FAILED)
    assert "invalid message" in (bad.message or "")
    assert job(running, "good").step == 3
    assert running.read(nodes.cursors) == {("node-0", "inc"): 2}, "it must not come again for ever"


def test_an_endless_error_is_cut(running: Opened) -> None:
    running.write(lambda c: store_events(c, [said("bad", 1, wire.Raised("x" * 1_000_000))], 201.0))
    assert len(job(running, "bad").message or "") < LONGEST_ERROR + 100


def test_what_is_no_number_is_left_out_of_a_result(running: Opened) -> None:
    finished = wire.Finished(1, 5, metrics={"auc": math.nan, "loss": math.inf, "accuracy": 0.5})
    steps = [{"step": 5.0, "loss": math.nan}]
    told = [wire.Progress(1, 5, 9, steps=steps), finished]
    running.write(lambda c: store_events(c, [said("bad", place, body) for place, body in enumerate(told)], 201.0))
    bad = job(running, "bad")
    assert (bad.then, bad.loss, bad.result["metrics"]) == (JobPhase.SUCCEEDED, None, {"accuracy": 0.5})
