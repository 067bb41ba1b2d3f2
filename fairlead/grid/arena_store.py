"""One tenant's arena in the grid process: allocates blocks, pins them for readers, evicts, spills and restores them."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fairlead.grid import mapping
from fairlead.grid.catalogue import RESERVED, RESIDENT, SPILLED, Catalogue, Change, Entry, Pin, Removed, Session, Unpin
from fairlead.grid.credentials import is_same_process
from fairlead.grid.errors import Refusal, check_facts, check_room
from fairlead.grid.journal import Journal, JournalFull
from fairlead.grid.messages import Admit, Commit, Placed, PutSmall
from fairlead.grid.spill import Cipher, DamagedSpill, Disk, derive
from fairlead.grid.values import SEGMENT, Usage, aligned
from fairlead.units import shown_size

KEEP_WARM_S = 300.0
"""Unused memory at the arena's end stays allocated for this long: a put into fresh memory is ten times slower."""
_MOST_SESSIONS = 4096  # of one tenant, connected or not
log = logging.getLogger("fairlead.grid")
_changes = msgspec.msgpack.Decoder(Change)
_encode = msgspec.msgpack.Encoder().encode


class ArenaStore:
    """Callers must hold :attr:`lock` for every method."""

    def __init__(self, admit: Admit, arena: int, reading: int, journal: int, spill: Path) -> None:
        self.lock = threading.RLock()
        self.tenant, self.quota = admit.tenant, admit.quota
        self.arena, self.reading = arena, reading
        self.size = os.fstat(arena).st_size
        self.memory_key = derive(admit.key, "memory") if admit.encrypted else b""
        self._spill_bytes = admit.spill_bytes
        folder = spill / hashlib.sha256(admit.tenant.encode()).hexdigest()[:16]
        self._disk = Disk(folder, Cipher(derive(admit.key, "spill"), admit.tenant)) if admit.key else None
        self._map = mapping.Mapping(arena, self.size, writable=True)
        self._journal = Journal(journal)
        self.catalogue = Catalogue(self._remember, map(_changes.decode, self._journal.entries()))
        self._unhashed = deque(one.id for one in self.catalogue.entries.values() if not one.digest)
        self.warm = self._touched_bytes()
        self._free_ranges = self.catalogue.free_ranges(self.warm)
        self._peak, self._next_look_s = 0, 0.0  # highest used offset since the last trim; when the next is due
        self._returning = ""  # the spilled block being restored: kept on disk meanwhile
        self.connected: set[str] = set()  # ids of sessions with an open connection

    def _touched_bytes(self) -> int:
        """How many bytes of the arena an earlier grid process has already touched."""
        used = max((one.offset + aligned(one.nbytes) for one in self.catalogue.entries.values()), default=0)
        page = os.sysconf("SC_PAGE_SIZE")
        touched = min(os.fstat(self.arena).st_blocks * 512, self.quota, self.size) // page * page
        return max(touched, min(aligned(max(used, 0), page), self.size))

    def _remember(self, change: Change) -> None:
        try:
            if self._journal.is_half_full:
                self._journal.rewrite(map(_encode, self.catalogue.as_changes()))
            self._journal.append(_encode(change))
        except JournalFull as error:
            raise Refusal(f"{error}: too many blocks", fix="put fewer and larger blocks, or drop some") from None

    # ------------------------------------------------------------ put

    def reserve(self, session: str, block: str, nbytes: int) -> Placed:
        """Allocate a range to write into; repeating the request returns the same range."""
        check_room(block, nbytes)
        found = self.catalogue.entries.get(block)
        if found is not None:
            if found.state != RESERVED or found.session != session or found.nbytes != nbytes:
                raise Refusal(f"block {block} exists already", "conflict")
            return self._placed(found)
        entry = Entry(block, nbytes, RESERVED, self._allocate(nbytes), session=session)
        return self._placed(self._add_entry(entry))

    def commit(self, session: str, said: Commit) -> Placed:
        """Turn a reserved range into a block."""
        check_facts(said.kind, said.label, said.cost_s)
        found = self.catalogue.entries.get(said.id)
        if found is None or (found.state == RESERVED and found.session != session):
            raise Refusal(f"block {said.id} was not reserved", "not-found")
        if not 0 <= said.header <= found.nbytes:
            raise Refusal(f"header of {said.header} bytes is longer than its block of {found.nbytes}", "invalid-spec")
        if found.state == RESERVED:
            found = msgspec.structs.replace(found, state=RESIDENT, header=said.header, kind=said.kind, label=said.label,
                                            cost_s=said.cost_s, session="")  # fmt: skip
            self.catalogue.apply(found)
            self._unhashed.append(found.id)
        return self._placed(found)

    def put(self, session: str, said: PutSmall) -> Placed:
        """Reserve, write and commit a small block in one request."""
        check_room(said.id, len(said.data))
        check_facts(said.kind, said.label, said.cost_s)
        if said.id in self.catalogue.entries:  # a retry after a lost answer
            return self._placed(self.catalogue.entries[said.id])
        placed = self.reserve(session, said.id, len(said.data))
        self._map.view(placed.offset, placed.nbytes)[:] = said.data
        return self.commit(session, Commit(said.id, said.header, said.kind, said.label, said.cost_s))

    def _add_entry(self, entry: Entry) -> Entry:
        try:
            self.catalogue.apply(entry)
        except Refusal:
            self._free_ranges.release(entry.offset, entry.nbytes)
            raise
        return entry

    def _placed(self, entry: Entry) -> Placed:
        return Placed(entry.offset, entry.nbytes, entry.header, entry.kind, self.warm, entry.digest)

    # ------------------------------------------------------------ room

    def _allocate(self, nbytes: int) -> int:
        """Return the offset of a new range; evicts blocks of this tenant, and of no other, until it fits."""
        if nbytes > min(self.quota, self.size):
            raise Refusal(f"{shown_size(nbytes)} exceed tenant {self.tenant}'s quota of {shown_size(self.quota)} "
                          "in the grid of a node", "too-large",
                          "put smaller blocks, or raise the quota")  # fmt: skip
        while True:
            if self.catalogue.used + aligned(nbytes) <= self.quota:
                offset = self._free_ranges.allocate(nbytes)
                if offset is None and self.grow(nbytes):
                    offset = self._free_ranges.allocate(nbytes)
                if offset is not None:
                    return offset
            victim = self.catalogue.victim()
            if victim is None and self.end_dead_sessions():
                continue
            if victim is None:
                used, quota = shown_size(self.catalogue.used), shown_size(self.quota)
                raise Refusal(f"the grid has no room for {shown_size(nbytes)}: {used} of the {quota} of tenant "
                              f"{self.tenant} are in use", fix="close or drop blocks, or raise the quota")  # fmt: skip
            self._evict(victim)

    def grow(self, nbytes: int) -> bool:
        """Allocate more memory within the quota, in this process, so that no worker waits for page faults."""
        wanted = max(SEGMENT, aligned(nbytes, SEGMENT))
        end = min(self.warm + wanted, aligned(min(self.quota, self.size), os.sysconf("SC_PAGE_SIZE")), self.size)
        if end <= self.warm:
            return False
        try:
            os.posix_fallocate(self.arena, self.warm, end - self.warm)
        except OSError as error:
            log.warning("arena of tenant %s cannot grow: %s", self.tenant, error)
            return False
        self.warm = end
        self._free_ranges.grow(end)
        return True

    def set_quota(self, quota: int, spill_bytes: int) -> None:
        """Set the quotas; blocks above a lower quota are evicted when room is needed."""
        self.quota, self._spill_bytes = quota, spill_bytes

    def trim(self, now_s: float) -> None:
        """Free memory that workers touched beyond the arena's end, and an end unused for KEEP_WARM_S."""
        self._peak = max(self._peak, self._free_ranges.used_end)
        if now_s >= self._next_look_s:
            end = max(aligned(self._peak, SEGMENT), SEGMENT)
            if self._next_look_s > 0 and end < self.warm:
                self._free_ranges.shrink(end)
                self.warm = end
            self._next_look_s, self._peak = now_s + KEEP_WARM_S, self._free_ranges.used_end
        if os.fstat(self.arena).st_blocks * 512 > self.warm:
            mapping.punch_hole(self.arena, self.warm, self.size)

    def _evict(self, entry: Entry) -> None:
        """Spill the block to disk, where less valuable blocks make room; drop it when that fails."""
        self.catalogue.record_eviction(entry)
        gone: Change = Removed(entry.id)
        if self._disk is not None and self._make_disk_room(entry):
            try:
                self._disk.write(entry.id, self._map.view(entry.offset, entry.nbytes))
                gone = msgspec.structs.replace(entry, state=SPILLED, offset=-1)
            except OSError as error:
                log.warning(
                    "block %s of tenant %s could not be spilled and is dropped: %s", entry.id, self.tenant, error
                )
        self.catalogue.apply(gone)
        self._free_ranges.release(entry.offset, entry.nbytes)

    def _make_disk_room(self, entry: Entry) -> bool:
        """True when the block fits on disk, after dropping less valuable spilled blocks."""
        wanted = aligned(entry.nbytes)
        if wanted > self._spill_bytes:
            return False
        leaving = self.catalogue.entries.get(self._returning)
        most = self._spill_bytes + (0 if leaving is None else aligned(leaving.nbytes))
        while self.catalogue.spilled + wanted > most:
            cheapest = self.catalogue.cheapest_spilled(self._returning)
            if cheapest is None or self.catalogue.retention(cheapest) >= self.catalogue.retention(entry):
                return False
            self._remove(cheapest)
        return True

    # ------------------------------------------------------------ open

    def open(self, session: str, block: str) -> Placed:
        """Pin the block for this session; restores it from disk first if it was spilled."""
        entry = self.catalogue.entries.get(block)
        if entry is None or entry.state == RESERVED:
            raise Refusal(f"there is no block {block[:40]} in the grid of tenant {self.tenant}", "not-found",
                          "put it again: it was dropped, or evicted while unused")  # fmt: skip
        if entry.state == SPILLED:
            entry = self._restore(entry)
        if session not in self.catalogue.pins.get(block, ()):
            self.catalogue.apply(Pin(session, block))
        return self._placed(entry)

    def _restore(self, entry: Entry) -> Entry:
        assert self._disk is not None
        self._returning = entry.id
        try:
            offset = self._allocate(entry.nbytes)
        finally:
            self._returning = ""
        try:
            self._disk.read(entry.id, self._map.view(offset, entry.nbytes))
        except (OSError, DamagedSpill) as error:
            self._free_ranges.release(offset, entry.nbytes)
            raise Refusal(f"block {entry.id} cannot be restored from disk: {error}", "unavailable") from None
        here = self._add_entry(msgspec.structs.replace(entry, state=RESIDENT, offset=offset))
        self._unhashed.append(entry.id)
        self._disk.drop(entry.id)
        return here

    def release(self, session: str, block: str) -> None:
        entry = self.catalogue.entries.get(block)
        if entry is not None and entry.state == RESERVED and entry.session == session:
            self._remove(entry)
        elif session in self.catalogue.pins.get(block, ()):
            self.catalogue.apply(Unpin(session, block))

    def drop(self, session: str, block: str) -> Placed:
        """Remove a block; refused while a session has it open."""
        entry = self.catalogue.entries.get(block)
        if entry is None or entry.state == RESERVED:
            raise Refusal(f"there is no block {block[:40]} in the grid of tenant {self.tenant}", "not-found")
        if others := self.catalogue.pins.get(block, set()):
            raise Refusal(f"block {block} is open in {len(others)} sessions", "conflict", "close it first")
        self._remove(entry)
        return Placed()

    def discard(self, label: str) -> None:
        """Remove all blocks of this label that no session has open."""
        for entry in list(self.catalogue.entries.values()):
            if entry.label == label and entry.state != RESERVED and entry.id not in self.catalogue.pins:
                self._remove(entry)

    def _remove(self, entry: Entry) -> None:
        self.catalogue.apply(Removed(entry.id))
        if entry.state != SPILLED:
            self._free_ranges.release(entry.offset, entry.nbytes)
        elif self._disk is not None:
            self._disk.drop(entry.id)

    # ------------------------------------------------------------ sessions, hashes

    def attach_session(self, session: Session, held: Iterable[str] = ()) -> None:
        """Connect a session, new or reconnecting; blocks it no longer lists as held are released."""
        known = self.catalogue.sessions.get(session.id)
        if known is not None and (known.pid, known.start_ticks) != (session.pid, session.start_ticks):
            raise Refusal("this session belongs to another process", "forbidden")
        if known is None:
            self._add_session(session, held)
        for block in self.catalogue.held(session.id) - set(held):
            self.release(session.id, block)
        self.connected.add(session.id)

    def _add_session(self, session: Session, held: Iterable[str]) -> None:
        """Register a new session and pin the resident blocks that it says it has open."""
        if len(self.catalogue.sessions) >= _MOST_SESSIONS and not self.end_dead_sessions():
            raise Refusal(f"tenant {self.tenant} has {_MOST_SESSIONS} sessions on this node", fix="close some")
        self.catalogue.apply(session)
        for block in held:
            entry = self.catalogue.entries.get(block)
            if entry is not None and entry.state == RESIDENT:
                self.catalogue.apply(Pin(session.id, block))

    def disconnect_session(self, session: str) -> None:
        """The connection is lost. While the process lives its pins and reservations stay: it may still use them."""
        self.connected.discard(session)
        known = self.catalogue.sessions.get(session)
        if known is not None and not (self.catalogue.held(session) and is_same_process(known.pid, known.start_ticks)):
            self.end_session(session)

    def end_session(self, session: str) -> None:
        """Forget a session and release all it held."""
        self.connected.discard(session)
        for entry in self.catalogue.end_session(session):
            self._free_ranges.release(entry.offset, entry.nbytes)

    def end_dead_sessions(self) -> bool:
        """End disconnected sessions whose process has ended; True when there was one."""
        away = [one for one in self.catalogue.sessions.values() if one.id not in self.connected]
        gone = {one for one in {(one.pid, one.start_ticks) for one in away} if not is_same_process(*one)}
        dead = [one.id for one in away if (one.pid, one.start_ticks) in gone]
        for session in dead:
            self.end_session(session)
        return bool(dead)

    def next_unhashed(self) -> tuple[Entry, memoryview] | None:
        """The next resident block without a digest, and its bytes; check :meth:`is_unchanged` while hashing."""
        while self._unhashed:
            entry = self.catalogue.entries.get(self._unhashed.popleft())
            if entry is not None and entry.state == RESIDENT and not entry.digest:
                return entry, self._map.view(entry.offset, entry.nbytes)
        return None

    def is_unchanged(self, entry: Entry) -> bool:
        """True while the block has not been moved or removed since ``entry`` was read."""
        return self.catalogue.entries.get(entry.id) is entry

    def record_digest(self, entry: Entry, digest: str) -> None:
        """Record the digest unless the block was moved or removed meanwhile."""
        if self.is_unchanged(entry):
            self.catalogue.apply(msgspec.structs.replace(entry, digest=digest))

    def contains(self, block: str) -> bool:
        """True when the block is in memory or on disk."""
        entry = self.catalogue.entries.get(block)
        return entry is not None and entry.state != RESERVED

    def view(self, offset: int, nbytes: int) -> memoryview:
        """The bytes of a reserved or pinned range."""
        return self._map.view(offset, nbytes)

    def usage(self) -> Usage:
        return self.catalogue.usage(self.quota, self.warm)
