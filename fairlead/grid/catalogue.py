"""The blocks, sessions and pins of one tenant's arena, and its order of eviction. No I/O of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from math import inf

import msgspec

from fairlead.grid.allocator import FreeRanges
from fairlead.grid.eviction import Candidate, order, retention, shared_bytes, worth
from fairlead.grid.values import BlockId, BlockInfo, Usage, aligned, is_snapshot

RESERVED, RESIDENT, SPILLED = "reserved", "resident", "spilled"
_MOST_LABELS = 256
_NOBODY = (2, inf)  # stands above everybody


class Entry(msgspec.Struct, tag="e", array_like=True, frozen=True):
    """One block, or a reservation for one."""

    id: str
    nbytes: int
    state: str
    offset: int = -1
    header: int = 0
    kind: str = ""
    label: str = ""
    cost_s: float = 0.0
    digest: str = ""
    session: str = ""  # that reserved it


class Removed(msgspec.Struct, tag="g", array_like=True, frozen=True):
    id: str


class Session(msgspec.Struct, tag="s", array_like=True, frozen=True):
    """A worker that may hold pins; identified by its process while it is disconnected."""

    id: str
    pid: int
    start_ticks: int  # start time of the process: a pid can be reused
    job: str = ""


class Ended(msgspec.Struct, tag="x", array_like=True, frozen=True):
    session: str


class Pin(msgspec.Struct, tag="p", array_like=True, frozen=True):
    session: str
    id: str


class Unpin(msgspec.Struct, tag="u", array_like=True, frozen=True):
    session: str
    id: str


Change = Entry | Removed | Session | Ended | Pin | Unpin


class Catalogue:
    """All changes go through :meth:`apply`, live and on replay after a restart, so that both give the same state."""

    def __init__(self, remember: Callable[[Change], None] = lambda change: None, past: Iterable[Change] = ()) -> None:
        self.entries: dict[str, Entry] = {}
        self.sessions: dict[str, Session] = {}
        self.pins: dict[str, set[str]] = {}  # block -> sessions
        self.used = self.spilled = 0
        self.evictions = 0
        self._inflation = 0.0
        self._uses: dict[str, tuple[int, float]] = {}  # block -> number of uses, and the inflation at the last use
        self._queue: list[tuple[tuple[int, float], str]] = []  # eviction order, next victim last
        self._least_unqueued = _NOBODY  # lowest retention among candidates that are not queued
        self._on_disk: list[tuple[tuple[int, float], str]] = []  # heap; stale entries are skipped
        self._remember: Callable[[Change], None] = lambda change: None
        for change in past:
            self.apply(change)
        self._remember = remember

    def apply(self, change: Change) -> None:
        """Journal the change, then apply it; a change that cannot be journalled is not applied."""
        self._remember(change)
        match change:
            case Entry():
                if change.state == RESIDENT:
                    self._uses.setdefault(change.id, (1, self._inflation))
                self._count(self.entries.get(change.id), -1)
                self.entries[change.id] = change
                self._count(change, 1)
                self._note_candidate(change)
                if change.state == SPILLED:
                    heappush(self._on_disk, (self.retention(change), change.id))
            case Removed():
                self._count(self.entries.pop(change.id, None), -1)
                self._uses.pop(change.id, None)
                self.pins.pop(change.id, None)
            case Session():
                self.sessions[change.id] = change
            case Ended():
                self.sessions.pop(change.session, None)
                for block in [block for block, holders in self.pins.items() if change.session in holders]:
                    self._unpin(change.session, block)
            case Pin():
                self.pins.setdefault(change.id, set()).add(change.session)
                uses, _ = self._uses.get(change.id, (0, 0.0))
                self._uses[change.id] = uses + 1, self._inflation
            case Unpin():
                self._unpin(change.session, change.id)

    def _unpin(self, session: str, block: str) -> None:
        holders = self.pins.get(block, set())
        holders.discard(session)
        if not holders:
            self.pins.pop(block, None)
            self._note_candidate(self.entries.get(block))

    def _count(self, entry: Entry | None, sign: int) -> None:
        if entry is not None and entry.state == SPILLED:
            self.spilled += sign * aligned(entry.nbytes)
        elif entry is not None:
            self.used += sign * max(aligned(entry.nbytes), aligned(1))

    def as_changes(self) -> list[Change]:
        """The shortest list of changes that rebuilds this catalogue."""
        pins = [Pin(session, block) for block, holders in self.pins.items() for session in sorted(holders)]
        return [*self.entries.values(), *self.sessions.values(), *pins]

    def free_ranges(self, end: int) -> FreeRanges:
        """The free ranges of an arena of this length."""
        taken = [(entry.offset, max(entry.nbytes, 1)) for entry in self.entries.values() if entry.state != SPILLED]
        return FreeRanges(end, taken)

    # ------------------------------------------------------------ eviction

    def victim(self) -> Entry | None:
        """The least valuable resident block without a pin; None when every block is pinned.

        Sorts all candidates once and then pops from that queue; a block used since, hence worth more, is skipped. The
        queue is rebuilt early when a block outside of it is worth less than its next victim.
        """
        for fresh in (False, True):
            if fresh:
                self._least_unqueued = _NOBODY
                everybody = (self._candidate(entry) for entry in self.entries.values() if entry.state == RESIDENT)
                self._queue = [(retention(one), one.id) for one in reversed(order(everybody))]
            while self._queue:
                if self._queue[-1][0] > self._least_unqueued:
                    break
                then, block = self._queue.pop()
                entry = self.entries.get(block)
                there = entry is not None and entry.state == RESIDENT and block not in self.pins
                if entry is not None and there and self.retention(entry) <= then:
                    return entry
        return None

    def _note_candidate(self, entry: Entry | None) -> None:
        """Account for a block that has become evictable since the queue was built."""
        if entry is not None and entry.state == RESIDENT and entry.id not in self.pins:
            self._least_unqueued = min(self._least_unqueued, self.retention(entry))

    def _candidate(self, entry: Entry) -> Candidate:
        uses, floor = self._uses.get(entry.id, (1, 0.0))
        rank = int(is_snapshot(entry.label))
        return Candidate(entry.id, entry.nbytes, entry.cost_s, uses, floor, pinned=entry.id in self.pins, rank=rank)

    def retention(self, entry: Entry) -> tuple[int, float]:
        """Sort key of eviction, in memory and on disk: lower goes first."""
        return retention(self._candidate(entry))

    def cheapest_spilled(self, spared: str = "") -> Entry | None:
        """The least valuable spilled block but ``spared``; a block's value does not change while it is on disk."""
        while self._on_disk:
            then, block = self._on_disk[0]
            entry = self.entries.get(block)
            if entry is not None and entry.state == SPILLED and self.retention(entry) == then:
                if block != spared:
                    return entry
                first = heappop(self._on_disk)
                second = self.cheapest_spilled()
                heappush(self._on_disk, first)
                return second
            heappop(self._on_disk)
        return None

    def record_eviction(self, entry: Entry) -> None:
        """Count an eviction and raise the inflation to the victim's value (GreedyDual)."""
        self._inflation = max(self._inflation, worth(self._candidate(entry)))
        self.evictions += 1

    def held(self, session: str) -> set[str]:
        """Ids of the blocks that a session has pinned or reserved."""
        pinned = {block for block, holders in self.pins.items() if session in holders}
        writes = {one.id for one in self.entries.values() if one.state == RESERVED and one.session == session}
        return pinned | writes

    def end_session(self, session: str) -> list[Entry]:
        """Remove a session, its pins and reservations; returns the reservations, whose ranges the caller frees."""
        left = [one for one in self.entries.values() if one.state == RESERVED and one.session == session]
        for entry in left:
            self.apply(Removed(entry.id))
        if session in self.sessions:
            self.apply(Ended(session))
        return left

    # ------------------------------------------------------------ reports

    def info(self, entry: Entry) -> BlockInfo:
        pins = len(self.pins.get(entry.id, ()))
        return BlockInfo(BlockId(entry.id), entry.kind, entry.nbytes - entry.header, entry.label, entry.digest,
                         entry.state, pins, entry.cost_s)  # fmt: skip

    def usage(self, quota: int, warm: int) -> Usage:
        resident = {entry.id: entry.nbytes for entry in self.entries.values() if entry.state == RESIDENT}
        labels: dict[str, int] = {}
        for entry in self.entries.values():
            if entry.state == RESIDENT:
                labels[entry.label] = labels.get(entry.label, 0) + entry.nbytes
        most = sorted(labels.items(), key=lambda item: (-item[1], item[0]))[:_MOST_LABELS]
        users = {
            block: frozenset(self.sessions[one].job for one in holders if one in self.sessions)
            for block, holders in self.pins.items()
        }
        return Usage(
            quota=quota, used=self.used, pinned=sum(resident.get(block, 0) for block in self.pins),
            spilled=self.spilled, warm=warm, blocks=sum(entry.state != RESERVED for entry in self.entries.values()),
            evictions=self.evictions, by_label=dict(most),
            by_job=shared_bytes(resident, {block: jobs for block, jobs in users.items() if jobs}),
        )  # fmt: skip
