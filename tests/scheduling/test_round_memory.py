"""What a round wants the next one to see: nothing of it is lost when it is stored, and nobody is taken for finished."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given

from fairlead.cluster import NodeState
from fairlead.scheduling import decide
from fairlead.scheduling.market.estimates import MOST_CLASSES, History, JobEstimate
from fairlead.scheduling.round_memory import memory_from_plain, memory_to_plain
from fairlead.scheduling.state import ClusterState

from .clusters import apply, clusters, few, job, nodes, state


@few
@given(clusters())
def test_a_memory_that_was_stored_is_the_memory_it_was(now: ClusterState) -> None:
    for _ in range(3):
        round_ = decide(now)
        assert memory_from_plain(json.loads(json.dumps(memory_to_plain(round_.memory)))) == round_.memory
        now = apply(now, round_, wait_s=60.0)


def test_who_cannot_run_for_now_has_not_finished() -> None:
    """Its node is drained: nobody else of its class is taken to be as short as it has run so far."""
    pool = nodes(1)
    begun = job("begun", seats=("node-0",), speeds={1: 10.0}, remaining_samples=1e4, work_done=500.0)
    before = state([begun], nodes=pool)
    seen = decide(before).memory
    waits = replace(begun, seats=())
    away = replace(before, nodes=[replace(pool[0], state=NodeState.CORDONED)], jobs=[waits], memory=seen)
    kept = decide(away).memory
    assert kept["finished"] == {} and kept["seen"] == seen["seen"]
    assert decide(replace(away, jobs=[], memory=kept)).memory["finished"]


def test_of_classes_of_jobs_only_those_seen_last_are_remembered() -> None:
    history = History({}, {})
    for number in range(MOST_CLASSES + 50):
        seen = {f"job-{number}": JobEstimate(f"class-{number}", 1.0, 1.0, 1.0)}
        seen["again"] = JobEstimate("class-3", 1.0, 1.0, 1.0)
        history = History(history.finished, seen).updated([])
    assert len(history.finished) == MOST_CLASSES
    assert "class-3" in history.finished and f"class-{MOST_CLASSES + 49}" in history.finished
    assert "class-0" not in history.finished
