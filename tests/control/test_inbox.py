"""The leader's inbox: bounded whatever is said while nobody listens, in order, and with a turn for every node."""

from __future__ import annotations

from fairlead import wire
from fairlead.agent.protocol import BackendEvent, NodeJoined, NodeLost, WorkerEvent
from fairlead.control.reconcile.inbox import (
    MAX_PER_NODE,
    MAX_PER_WORKER,
    MOST_STEPS,
    UNMERGED_REPORTS,
    Inbox,
    thin_steps,
)


class Node:
    """Numbers what its workers say."""

    def __init__(self, name: str, inbox: Inbox) -> None:
        self.name, self.sequence, self._inbox = name, 0, inbox

    def says(self, body: wire.FromWorker | wire.Exited, worker: str = "w0", job: str = "job") -> None:
        self.sequence += 1
        self._inbox.put(WorkerEvent(self.name, "i1", self.sequence, float(self.sequence), job, worker, body))


def progress(step: int, generation: int = 1, *, history: bool = True) -> wire.Progress:
    steps = [{"step": float(step), "time_s": float(step)}] if history else []
    return wire.Progress(generation, step, 10**9, steps=steps)


def said(events: list[BackendEvent]) -> list[object]:
    return [event.body for event in events if isinstance(event, WorkerEvent)]


def test_in_quiet_times_everything_is_handed_on_as_it_was_said() -> None:
    inbox = Inbox()
    node = Node("node-0", inbox)
    bodies = [wire.Joined(1, 0), *(progress(step) for step in range(UNMERGED_REPORTS - 1)), wire.Finished(1, 9)]
    for body in bodies:
        node.says(body)
    assert said(inbox.take()) == bodies
    assert len(inbox) == 0 and inbox.take() == []


def test_reports_that_wait_for_long_are_merged_into_the_newest_with_a_thinned_history() -> None:
    inbox = Inbox()
    node = Node("node-0", inbox)
    for step in range(1, 50_001):
        node.says(progress(step))
        node.says(progress(step, history=False))
        node.says(wire.Snapshot(1, step, "memory", 10, 0.1))
    assert len(inbox) <= UNMERGED_REPORTS + 3
    events = inbox.take()
    assert [event.sequence for event in events] == sorted(event.sequence for event in events)  # type: ignore[union-attr]
    newest = [body for body in said(events) if isinstance(body, wire.Progress) and body.steps][-1]
    assert newest.step == 50_000 and newest.steps[-1]["step"] == 50_000
    assert len(newest.steps) <= MOST_STEPS
    steps = [row["step"] for row in newest.steps]
    assert steps == sorted(steps) and steps[0] < 100, "the whole time is told of, the older part more coarsely"
    assert events[-1].sequence == node.sequence, "acknowledging the last one acknowledges all"  # type: ignore[union-attr]


def test_what_a_generation_reported_is_not_merged_with_what_the_next_one_does() -> None:
    inbox = Inbox()
    node = Node("node-0", inbox)
    for step in range(40):
        node.says(progress(step))
    node.says(wire.Left(1, 39))
    node.says(wire.Joined(2, 39))
    for step in range(40, 80):
        node.says(progress(step, 2))
    bodies = said(inbox.take())
    middle = bodies.index(wire.Left(1, 39))
    assert {body.generation for body in bodies[:middle]} == {1}  # type: ignore[attr-defined]
    assert {body.generation for body in bodies[middle + 1 :]} == {2}  # type: ignore[attr-defined]
    assert bodies[middle + 1] == wire.Joined(2, 39)


def test_a_worker_that_says_too_much_fails_its_job_and_its_end_is_heard_all_the_same() -> None:
    inbox = Inbox()
    node = Node("node-0", inbox)
    for _ in range(10 * MAX_PER_WORKER):
        node.says(wire.Ready(batch_size=10))
    node.says(wire.Exited(0))
    node.says(wire.Ready(), worker="w1", job="another")
    assert len(inbox) == MAX_PER_WORKER + 2
    bodies = said(inbox.take())
    assert isinstance(raised := bodies[MAX_PER_WORKER - 1], wire.Raised) and raised.permanent
    assert bodies[-2:] == [wire.Exited(0), wire.Ready()]
    node.says(wire.Ready())
    assert said(inbox.take()) == [wire.Ready()], "what was taken in counts no longer"


def test_a_node_that_floods_keeps_no_other_waiting_for_more_than_a_turn() -> None:
    inbox = Inbox()
    loud, quiet = Node("loud", inbox), Node("quiet", inbox)
    for number in range(5 * MAX_PER_NODE):
        loud.says(wire.Exited(0), worker=f"w{number}")
    quiet.says(wire.Exited(0))
    first = inbox.take()
    assert len(first) == MAX_PER_NODE + 1 and first[-1].node == "quiet"
    rest = [event for _ in range(4) for event in inbox.take()]
    numbers = [event.sequence for event in [*first, *rest] if isinstance(event, WorkerEvent) and event.node == "loud"]
    assert numbers == list(range(1, 5 * MAX_PER_NODE + 1)) and len(inbox) == 0


def test_changes_of_a_node_stay_in_order_with_what_was_said_on_it() -> None:
    inbox = Inbox()
    node = Node("node-0", inbox)
    joined, lost = NodeJoined("node-0", "i1", []), NodeLost("node-0", "i1", "fenced")
    inbox.put(joined)
    node.says(wire.Ready())
    inbox.put(lost)
    events = inbox.take()
    assert events[0] == joined and events[2] == lost


def test_thinning_keeps_the_first_step_and_the_newest_half() -> None:
    steps = [{"step": float(number)} for number in range(100)]
    kept = [row["step"] for row in thin_steps(steps, 60)]
    assert len(kept) <= 60 and kept[0] == 0.0 and kept[-30:] == [float(number) for number in range(70, 100)]
