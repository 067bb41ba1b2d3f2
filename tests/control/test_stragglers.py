"""From what workers say of their slowness to who is replaced, and not again before some minutes have passed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead import wire
from fairlead.cluster import Member
from fairlead.control.reconcile.cluster_state import job_state
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.reconcile.straggler_replacement import (
    SLOW_AFTER_S,
    SLOW_AGAIN_S,
    members_that_stay,
    straggler_nodes,
)
from fairlead.control.reconcile.worker_events import fact_after
from fairlead.control.records import GenerationPhase, JobPhase
from fairlead.scheduling.state import Reason
from tests.control import made

GENERATION = made.generation(("w0", "node-0"), ("w1", "node-1"), phase=GenerationPhase.RUNNING)


def joined(node: str, slow_s: float = 0.0) -> WorkerFact:
    return WorkerFact(node, "joined", 1, slow_s=slow_s)


def test_what_a_worker_says_is_remembered_until_its_next_generation() -> None:
    said = fact_after(joined("node-0"), wire.Progress(1, 5, 10, slow_s=30.0))
    assert said.slow_s == 30.0
    assert fact_after(said, wire.Progress(0, 5, 10, slow_s=99.0)).slow_s == 30.0  # of a generation that is over
    assert fact_after(said, wire.Joined(2, 5)).slow_s == 0.0


def test_who_was_slow_for_long_reaches_the_scheduler() -> None:
    workers = {"w0": joined("node-0"), "w1": joined("node-1", SLOW_AFTER_S)}
    job = made.job(phase=JobPhase.RUNNING)
    assert job_state(job, [GENERATION], workers, cooling=False).slow == ("node-1",)
    early = workers | {"w1": joined("node-1", SLOW_AFTER_S - 1)}
    assert job_state(job, [GENERATION], early, cooling=False).slow == ()


@pytest.mark.parametrize(("slow_s", "found"), [(SLOW_AFTER_S, ()), (SLOW_AGAIN_S, ("node-1",))])
def test_after_a_replacement_the_next_one_waits_longer(slow_s: float, found: tuple[str, ...]) -> None:
    again = replace(GENERATION, reason_code="straggler")
    assert straggler_nodes(again, {"w0": joined("node-0"), "w1": joined("node-1", slow_s)}) == found


def test_of_two_workers_on_one_node_the_slow_one_goes() -> None:
    members = tuple(Member(f"w{rank}", rank, "node-0", rank) for rank in range(2))
    workers = {"w0": joined("node-0", 200.0), "w1": joined("node-0")}
    reason = Reason("straggler", "", {"leaves": "node-0", "takes": "node-1"})
    assert [member.worker for member in members_that_stay(members, workers, reason)] == ["w1"]
    assert members_that_stay(members, workers, Reason("grow", "")) == members
