"""What nodes have said and the loop has not taken in yet: in bounded memory, and with a turn for every node.

A worker that trains reports for as long as nobody listens (while the store is away, say), so its reports that wait are
merged: the newest figures, with a history that is thinned. Whatever else it has to say is a handful of messages in its
life; one that goes on says so much that its job fails. What is left out is covered by the message that stands for it,
so that acknowledging that one acknowledges both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import msgspec

from fairlead import wire
from fairlead.agent.protocol import BackendEvent, WorkerEvent

AS_THEY_COME = 16
"""Reports of one worker that may wait before they are merged: in quiet times each is stored as it was said."""

MOST_STEPS = 2000
"""Of the history of one worker that waits; older steps are thinned."""

MOST_OF_ONE = 200
"""Messages of one worker that are no reports; after that its job fails."""

MOST_OF_A_NODE = 1000
"""Events of one node that are taken in at once; the rest waits for the next pass."""

HISTORY, SIGN, IN_MEMORY, ON_DISK = "history", "sign", "in memory", "on disk"

TOO_MUCH = f"the worker said more than {MOST_OF_ONE} things at once, which no honest worker does"


@dataclass(slots=True)
class _Worker:
    """What of one worker waits: its reports since it last said anything else, by kind and place, and the others."""

    reports: dict[str, int] = field(default_factory=dict)
    waiting: int = 0
    others: int = 0


class Inbox:
    """In the order of arrival; of each node nothing overtakes anything, but reports that others stand for."""

    def __init__(self) -> None:
        self._events: dict[int, BackendEvent] = {}  # by place in the order of arrival
        self._last = 0
        self._workers: dict[tuple[str, str, str, str], _Worker] = {}

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: BackendEvent) -> None:
        """Have it wait."""
        if not isinstance(event, WorkerEvent):
            self._add(event)
            return
        worker = self._workers.setdefault(_speaker(event), _Worker())
        kind = _kind(event.body)
        if kind is None:
            worker.reports.clear()
            if not isinstance(event.body, wire.Exited):  # which its node says, once
                worker.others += 1
                if worker.others > MOST_OF_ONE:
                    return
                if worker.others == MOST_OF_ONE:
                    event = replace(event, body=wire.Raised(TOO_MUCH, permanent=True))
        elif worker.waiting >= AS_THEY_COME:
            event = self._merged(worker, kind, event)
        worker.waiting += 1
        self._add(event)
        if kind is not None:
            worker.reports[kind] = self._last

    def waits(self, but: Collection[str] = ()) -> bool:
        """Whether anything waits of a node other than these."""
        return any(event.node not in but for event in self._events.values()) if but else bool(self._events)

    def take(self, but: Collection[str] = ()) -> list[BackendEvent]:
        """What is to be taken in now: all of it, but of no node more than its turn, and nothing of these."""
        taken: Counter[str] = Counter()
        found = []
        for place, event in self._events.items():
            if event.node in but:
                continue
            taken[event.node] += 1
            if taken[event.node] <= MOST_OF_A_NODE:
                found.append((place, event))
        for place, event in found:
            del self._events[place]
            if isinstance(event, WorkerEvent):
                self._taken(place, event)
        return [event for _, event in found]

    def _add(self, event: BackendEvent) -> None:
        self._last += 1
        self._events[self._last] = event

    def _taken(self, place: int, event: WorkerEvent) -> None:
        key = _speaker(event)
        worker = self._workers[key]
        worker.waiting -= 1
        if not worker.waiting:
            del self._workers[key]
            return
        kind = _kind(event.body)
        if kind is None:
            worker.others -= not isinstance(event.body, wire.Exited)
        elif worker.reports.get(kind) == place:
            del worker.reports[kind]

    def _merged(self, worker: _Worker, kind: str, event: WorkerEvent) -> WorkerEvent:
        """The event that stands for itself and for the one of its kind that waits."""
        before = self._drop(worker, kind)
        if kind != HISTORY:
            return event
        self._drop(worker, SIGN)
        body, earlier = event.body, None if before is None else before.body
        assert isinstance(body, wire.Progress)
        if not isinstance(earlier, wire.Progress) or earlier.generation != body.generation:
            return event
        steps = thinned([*earlier.steps, *body.steps], MOST_STEPS)
        return replace(event, body=msgspec.structs.replace(body, steps=steps))

    def _drop(self, worker: _Worker, kind: str) -> WorkerEvent | None:
        place = worker.reports.pop(kind, None)
        if place is None:
            return None
        worker.waiting -= 1
        event = self._events.pop(place)
        assert isinstance(event, WorkerEvent)
        return event


def thinned(steps: list[dict[str, float]], most: int) -> list[dict[str, float]]:
    """The steps, with every second of the older half left out as often as it takes; the first one stays."""
    while len(steps) > most:
        half = len(steps) // 2
        steps = [*steps[:half:2], *steps[half:]]
    return steps


def _speaker(event: WorkerEvent) -> tuple[str, str, str, str]:
    return event.node, event.incarnation, event.job, event.worker


def _kind(body: wire.FromWorker | wire.Exited) -> str | None:
    """Reports of one kind can stand for each other; None: it is no report."""
    if isinstance(body, wire.Progress):
        return HISTORY if body.steps else SIGN
    if isinstance(body, wire.Snapshot):
        return ON_DISK if body.where == "disk" else IN_MEMORY
    return None
