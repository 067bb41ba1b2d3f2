"""Events of a node, kept in order until the control plane has stored them, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fairlead import wire

MOST_STEPS = 50_000  # of history kept while nobody listens


class Outbox:
    """Numbers events from 1 and forgets what was acknowledged."""

    def __init__(self, most_steps: int = MOST_STEPS) -> None:
        self._events: dict[int, wire.Event] = {}
        self._last = 0
        self._heartbeats: dict[tuple[str, str], int] = {}
        self._most_steps = most_steps
        self._steps = 0

    def add(self, time_s: float, job: str, worker: str, body: wire.FromWorker | wire.Exited) -> wire.Event:
        """The event to send now; an older sign of life of the same worker that says nothing else is dropped."""
        self._last += 1
        event = wire.Event(sequence=self._last, time_s=time_s, body=body, job=job, worker=worker)
        self._events[self._last] = event
        if isinstance(body, wire.Progress):
            if body.steps:
                self._steps += len(body.steps)
                self._thin()
            else:
                self._events.pop(self._heartbeats.get((job, worker), 0), None)
                self._heartbeats[job, worker] = self._last
        elif isinstance(body, wire.Exited):
            self._heartbeats.pop((job, worker), None)
        return event

    def __len__(self) -> int:
        return len(self._events)

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._last

    def acknowledge(self, sequence: int) -> None:
        """Forget everything up to this number."""
        for number in [number for number in self._events if number <= sequence]:
            self._steps -= _steps(self._events.pop(number))

    def pending(self) -> Iterator[wire.Event]:
        """What has not been acknowledged, in order."""
        return iter([self._events[number] for number in sorted(self._events)])

    def _thin(self) -> None:
        """Halve the resolution of the older half of the history when it grows too long."""
        if self._steps <= self._most_steps:
            return
        told = [number for number in sorted(self._events) if _steps(self._events[number])]
        for place, number in enumerate(told[: max(2, len(told) // 2)]):
            event = self._events.pop(number)
            steps = event.body.steps if isinstance(event.body, wire.Progress) else []
            kept = steps[::-2][::-1] if len(steps) > 1 else steps[place % 2 :]  # of two single ones the second goes
            self._steps -= len(steps) - len(kept)
            if kept:
                thinner = msgspec.structs.replace(event.body, steps=kept)
                self._events[number] = msgspec.structs.replace(event, body=thinner)


def _steps(event: wire.Event) -> int:
    return len(event.body.steps) if isinstance(event.body, wire.Progress) else 0
