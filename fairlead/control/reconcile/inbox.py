"""Queues events of nodes for the loop: bounds what waits, and takes a limited number from each node per pass.

A training worker reports even while nothing takes the reports in (while the store is away, say), so its waiting reports
are merged: the newest figures, with a thinned history. Its other messages are a handful in its life; a worker that
sends far more fails its job. A merged event stands for the dropped ones, so that acknowledging it acknowledges all of
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import msgspec

from fairlead import wire
from fairlead.agent.protocol import BackendEvent, WorkerEvent

UNMERGED_REPORTS = 16
"""Waiting reports of one worker before they are merged: normally each is stored as it was sent."""

MOST_STEPS = 2000
"""Steps of history of one worker that wait; older steps are thinned."""

MAX_PER_WORKER = 200
"""Waiting messages of one worker that are not reports; more fail its job."""

MAX_PER_NODE = 1000
"""Events of one node that are taken in at once; the rest waits for the next pass."""

HISTORY, SIGN, IN_MEMORY, ON_DISK = "history", "sign", "in memory", "on disk"

TOO_MUCH = f"the worker sent more than {MAX_PER_WORKER} messages at once, which no honest worker does"


@dataclass(slots=True)
class _Worker:
    """The waiting events of one worker: its reports since its last other message, by kind and position, and counts."""

    reports: dict[str, int] = field(default_factory=dict)
    waiting: int = 0
    others: int = 0


class Inbox:
    """Keeps the order of arrival; only merged reports are overtaken."""

    def __init__(self) -> None:
        self._events: dict[int, BackendEvent] = {}  # by position in the order of arrival
        self._last = 0
        self._workers: dict[tuple[str, str, str, str], _Worker] = {}

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: BackendEvent) -> None:
        """Queue an event."""
        if not isinstance(event, WorkerEvent):
            self._add(event)
            return
        worker = self._workers.setdefault(_worker_key(event), _Worker())
        kind = _kind(event.body)
        if kind is None:
            worker.reports.clear()
            if not isinstance(event.body, wire.Exited):  # its node sends that, once
                worker.others += 1
                if worker.others > MAX_PER_WORKER:
                    return
                if worker.others == MAX_PER_WORKER:
                    event = replace(event, body=wire.Raised(TOO_MUCH, permanent=True))
        elif worker.waiting >= UNMERGED_REPORTS:
            event = self._merged(worker, kind, event)
        worker.waiting += 1
        self._add(event)
        if kind is not None:
            worker.reports[kind] = self._last

    def has_events(self, but: Collection[str] = ()) -> bool:
        """True if an event of any node but these waits."""
        return any(event.node not in but for event in self._events.values()) if but else bool(self._events)

    def take(self, but: Collection[str] = ()) -> list[BackendEvent]:
        """Remove and return the events to take in now: at most one turn's worth of each node, none of these nodes."""
        taken: Counter[str] = Counter()
        found = []
        for place, event in self._events.items():
            if event.node in but:
                continue
            taken[event.node] += 1
            if taken[event.node] <= MAX_PER_NODE:
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
        key = _worker_key(event)
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
        """The event that stands for itself and for the waiting one of its kind."""
        before = self._drop(worker, kind)
        if kind != HISTORY:
            return event
        self._drop(worker, SIGN)
        body, earlier = event.body, None if before is None else before.body
        assert isinstance(body, wire.Progress)
        if not isinstance(earlier, wire.Progress) or earlier.generation != body.generation:
            return event
        steps = thin_steps([*earlier.steps, *body.steps], MOST_STEPS)
        return replace(event, body=msgspec.structs.replace(body, steps=steps))

    def _drop(self, worker: _Worker, kind: str) -> WorkerEvent | None:
        place = worker.reports.pop(kind, None)
        if place is None:
            return None
        worker.waiting -= 1
        event = self._events.pop(place)
        assert isinstance(event, WorkerEvent)
        return event


def thin_steps(steps: list[dict[str, float]], most: int) -> list[dict[str, float]]:
    """The steps; every second one of the older half is dropped until they fit. The first one stays."""
    while len(steps) > most:
        half = len(steps) // 2
        steps = [*steps[:half:2], *steps[half:]]
    return steps


def _worker_key(event: WorkerEvent) -> tuple[str, str, str, str]:
    return event.node, event.incarnation, event.job, event.worker


def _kind(body: wire.FromWorker | wire.Exited) -> str | None:
    """Reports of one kind can be merged; None: it is not a report."""
    if isinstance(body, wire.Progress):
        return HISTORY if body.steps else SIGN
    if isinstance(body, wire.Snapshot):
        return ON_DISK if body.where == "disk" else IN_MEMORY
    return None
