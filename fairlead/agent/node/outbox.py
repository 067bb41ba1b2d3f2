"""Keeps a node's events in order and in bounded memory until the control plane has stored them.

Events are kept encoded: a message that is small on the wire may be large in memory. While no leader is connected the
older part of training histories is thinned. Nothing else is dropped; a worker that sends more than is kept for one is
:meth:`Outbox.is_over_limit`, and is ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from fairlead import wire

MOST_STEPS = 50_000  # of training history, unacknowledged
MOST_HISTORY_BYTES = 32 << 20
MOST_BYTES_EACH = 16 << 20  # of all other messages of one worker

_decoder = msgspec.msgpack.Decoder(wire.Event)
_encode = msgspec.msgpack.Encoder().encode


class _Stored(NamedTuple):
    """One encoded event."""

    key: tuple[str, str]  # job and worker
    packed: bytes
    steps: int  # of history; events without are never thinned


@dataclass(slots=True)
class _Backlog:
    """One worker's unacknowledged events."""

    events: int = 0
    steps: int = 0
    history_bytes: int = 0
    other_bytes: int = 0
    heartbeat: int = 0  # its newest Progress without history

    def count(self, stored: _Stored, times: int) -> None:
        self.events += times
        self.steps += times * stored.steps
        if stored.steps:
            self.history_bytes += times * len(stored.packed)
        else:
            self.other_bytes += times * len(stored.packed)


class Outbox:
    """Numbers events from 1 and keeps them until acknowledged."""

    def __init__(
        self, most_steps: int = MOST_STEPS, most_history_bytes: int = MOST_HISTORY_BYTES,
        most_bytes_each: int = MOST_BYTES_EACH,
    ) -> None:  # fmt: skip
        self._most_steps, self._most_history_bytes = most_steps, most_history_bytes
        self._most_bytes_each = most_bytes_each
        self._events: dict[int, _Stored] = {}
        self._last = 0
        self._backlogs: defaultdict[tuple[str, str], _Backlog] = defaultdict(_Backlog)

    def add(
        self, time_s: float, job: str, worker: str, body: wire.FromWorker | wire.Exited, at_s: float = 0.0
    ) -> wire.Event:  # fmt: skip
        """Store an event and return it with its number; replaces the worker's previous heartbeat by a new one."""
        self._last += 1
        event = wire.Event(sequence=self._last, time_s=time_s, body=body, job=job, worker=worker, at_s=at_s)
        self._store(event)
        if isinstance(body, wire.Progress) and not body.steps:
            backlog = self._backlogs[job, worker]
            if backlog.heartbeat in self._events:
                self._forget(backlog.heartbeat)
            backlog.heartbeat = self._last
        elif isinstance(body, wire.Progress):
            self._thin()
        return event

    def __len__(self) -> int:
        return len(self._events)

    @property
    def last(self) -> int:
        """The number of the newest event."""
        return self._last

    def is_over_limit(self, job: str, worker: str) -> bool:
        """True when the worker has more unacknowledged bytes than are kept for one."""
        backlog = self._backlogs.get((job, worker))
        return backlog is not None and backlog.other_bytes > self._most_bytes_each

    def acknowledge(self, sequence: int) -> None:
        """Drop all events up to this number."""
        for number in [number for number in self._events if number <= sequence]:
            self._forget(number)

    def pending(self) -> Iterator[wire.Event]:
        """The unacknowledged events, in order."""
        return (_decoder.decode(self._events[number].packed) for number in sorted(self._events))

    def _store(self, event: wire.Event) -> None:
        steps = len(event.body.steps) if isinstance(event.body, wire.Progress) else 0
        stored = self._events[event.sequence] = _Stored((event.job, event.worker), _encode(event), steps)
        self._backlogs[stored.key].count(stored, 1)

    def _forget(self, number: int) -> None:
        stored = self._events.pop(number)
        backlog = self._backlogs[stored.key]
        backlog.count(stored, -1)
        if not backlog.events:
            del self._backlogs[stored.key]

    def _thin(self) -> None:
        """When histories exceed the limit, drop every other step of the older half of the largest one."""
        steps = sum(backlog.steps for backlog in self._backlogs.values())
        history_bytes = sum(backlog.history_bytes for backlog in self._backlogs.values())
        if steps <= self._most_steps and history_bytes <= self._most_history_bytes:
            return
        key = max(self._backlogs, key=lambda key: self._part(self._backlogs[key]))
        told = [number for number in sorted(self._events) if (each := self._events[number]).steps and each.key == key]
        for place, number in enumerate(told[: max(2, len(told) // 2)]):
            event = _decoder.decode(self._events[number].packed)
            self._forget(number)
            steps_told = event.body.steps if isinstance(event.body, wire.Progress) else []
            # The last step always stays; of two events with a single step, the first.
            kept = steps_told[::-2][::-1] if len(steps_told) > 1 else steps_told[place % 2 :]
            if kept:
                self._store(msgspec.structs.replace(event, body=msgspec.structs.replace(event.body, steps=kept)))

    def _part(self, backlog: _Backlog) -> float:
        """The worker's part of the limit for histories."""
        return max(backlog.steps / self._most_steps, backlog.history_bytes / self._most_history_bytes)
