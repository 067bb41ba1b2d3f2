"""What a round wants the next one to see: nothing of it is lost when it is stored, and nobody is taken for finished."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given

from fairlead.cluster import NodeState
from fairlead.scheduling import decide
from fairlead.scheduling.carry.remembering import plain, recalled
from fairlead.scheduling.state import ClusterState

from .clusters import apply, clusters, few, job, nodes, state


@few
@given(clusters())
def test_a_memory_that_was_stored_is_the_memory_it_was(now: ClusterState) -> None:
    for _ in range(3):
        round_ = decide(now)
        assert recalled(json.loads(json.dumps(plain(round_.memory)))) == round_.memory
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
