"""Keeps the newest events in memory for all followers: read once, rendered once per tenant, handed to each."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from fairlead.control.job_views import event_view
from fairlead.control.records import LoggedEvent

MAX_EVENTS = 1000
"""Events in the ring; followers that lag further read from the store."""
MAX_CHARS = 4_000_000
"""Total length of their texts and facts."""
_ROW_CHARS = 300

Filter = tuple[str | None, str | None]
"""Tenant and job whose events are wanted; None: all."""


@dataclass(frozen=True, slots=True)
class RenderedEvent:
    """One event as it is sent."""

    id: int
    kind: str
    json: bytes


@dataclass(slots=True)
class _Entry:
    event: LoggedEvent
    chars: int
    rendered: dict[str | None, RenderedEvent] = field(default_factory=dict)  # by tenant scope

    def for_tenant(self, tenant: str | None) -> RenderedEvent:
        """The event rendered for this scope; all its followers share it."""
        if tenant not in self.rendered:
            self.rendered[tenant] = render(self.event, tenant)
        return self.rendered[tenant]

    def matches(self, wanted: Filter) -> bool:
        tenant, job = wanted
        return tenant in (None, self.event.tenant) and job in (None, self.event.job)


class EventRing:
    """All events after ``since``. One store reader feeds it; followers wait here, not at the store."""

    def __init__(self) -> None:
        self.since = 0  # no event after this id is missing
        self.newest = 0
        self._entries: list[_Entry] = []
        self._ids: list[int] = []
        self._chars = 0
        self._waiting: dict[Filter, set[asyncio.Future[None]]] = {}

    def begin(self, newest: int) -> None:
        """Empty the ring; events up to this id are only in the store."""
        self.since = self.newest = newest
        self._entries, self._ids, self._chars = [], [], 0

    @property
    def has_followers(self) -> bool:
        """True if anybody waits for events."""
        return bool(self._waiting)

    def extend(self, events: Sequence[LoggedEvent]) -> None:
        """Add new events and wake only the followers that want them."""
        awake: set[Filter] = set()
        for event in events:
            size = _ROW_CHARS + len(event.text) + len(str(event.facts))
            self._entries.append(_Entry(event, size))
            self._ids.append(event.id)
            self._chars += size
            self.newest = event.id
            awake |= {(None, None), (None, event.job), (event.tenant, None), (event.tenant, event.job)}
        self._evict()
        for wanted in awake & self._waiting.keys():
            for future in self._waiting.pop(wanted):
                if not future.done():
                    future.set_result(None)

    def after(self, id: int, wanted: Filter, limit: int) -> list[RenderedEvent] | None:
        """The next matching events after this id, oldest first; None if the ring does not reach back that far."""
        if id < self.since:
            return None
        found = []
        for kept in self._entries[bisect_right(self._ids, id) :]:
            if kept.matches(wanted):
                found.append(kept.for_tenant(wanted[0]))
                if len(found) == limit:
                    break
        return found

    async def wait(self, wanted: Filter, timeout_s: float | None) -> None:
        """Wait for a matching event or the timeout. Do not await anything between :meth:`after` and this."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(wanted, set()).add(future)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await future
        finally:
            others = self._waiting.get(wanted)
            if others is not None:
                others.discard(future)
                if not others:
                    del self._waiting[wanted]

    def _evict(self) -> None:
        """Drop the oldest events when there are too many; a quarter at once, so that lists rarely move."""
        if len(self._entries) <= MAX_EVENTS and self._chars <= MAX_CHARS:
            return
        count = 0
        while count < len(self._entries) and (
            len(self._entries) - count > MAX_EVENTS * 3 // 4 or self._chars > MAX_CHARS * 3 // 4
        ):
            self._chars -= self._entries[count].chars
            count += 1
        self.since = self._ids[count - 1]
        del self._entries[:count], self._ids[:count]


def render(event: LoggedEvent, tenant: str | None) -> RenderedEvent:
    """The event as this tenant may see it; None: unredacted."""
    return RenderedEvent(event.id, event.kind, event_view(event, tenant).model_dump_json().encode())
