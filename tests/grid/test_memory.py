"""Memory of the machine: what a worker touches beyond the quota is taken back, and so is what nobody needs any more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlead.grid import mapping
from fairlead.grid.allocator import FreeRanges
from fairlead.grid.arena_store import KEEP_WARM_S, ArenaStore
from fairlead.grid.catalogue import Session
from fairlead.grid.messages import Admit, PutSmall
from fairlead.grid.standalone import StandaloneGrid
from fairlead.grid.values import SEGMENT
from tests.grid.conftest import MB
from tests.waiting import until

Make = Callable[..., StandaloneGrid]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ArenaStore]:
    """A tenant's arena without a process."""
    arena, journal = mapping.create("arena", 1 << 30), mapping.create("journal", mapping.JOURNAL_BYTES)
    reading = mapping.read_only(arena)
    yield ArenaStore(Admit("tenant", 256 * MB), arena, reading, journal, tmp_path)
    for descriptor in (arena, reading, journal):
        os.close(descriptor)


def taken(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks * 512


def test_memory_that_a_worker_touches_beyond_the_quota_goes_back_to_the_machine(grids: Make) -> None:
    standalone_grid = grids(quota=8 * MB)
    grid = standalone_grid.connect()
    block = grid.put([b"x" * MB], kind="k", meta={})
    arena = standalone_grid.supervisor._tenants["tenant"].descriptors[0]
    grid._line.writing().prefault(1 << 30, 64 * MB)
    assert taken(arena) >= 64 * MB
    until(lambda: taken(arena) <= 8 * MB, what="given back")
    assert bytes(grid.open(block).parts()[0]) == b"x" * MB


def test_what_is_warm_when_a_grid_process_starts_stays_so_until_it_has_looked_for_minutes(store: ArenaStore) -> None:
    store.attach_session(Session("s", os.getpid(), 1))
    store.reserve("s", "b" * 32, 3 * SEGMENT)
    store.release("s", "b" * 32)
    warm = store.warm
    store.trim(1000.0)
    assert store.warm == taken(store.arena) == warm == 3 * SEGMENT
    store.trim(999.0 + KEEP_WARM_S)
    assert store.warm == warm
    store.trim(1000.0 + KEEP_WARM_S)
    assert store.warm == taken(store.arena) == SEGMENT


def test_memory_that_nobody_needed_for_minutes_goes_back_and_comes_again(store: ArenaStore) -> None:
    store.attach_session(Session("s", os.getpid(), 1))
    small, large = "a" * 32, "b" * 32
    store.put("s", PutSmall(small, b"bytes", 0, "k"))
    store.reserve("s", large, 3 * SEGMENT)
    store.trim(0.0)
    store.release("s", large)
    store.trim(1.0)
    assert store.warm == taken(store.arena) > 3 * SEGMENT, "it is kept warm for a while"
    store.trim(2.0 + KEEP_WARM_S)
    store.trim(3.0 + 2 * KEEP_WARM_S)
    assert store.warm == taken(store.arena) == SEGMENT
    placed = store.open("s", small)
    assert bytes(store.view(placed.offset, placed.nbytes)) == b"bytes"
    store.reserve("s", large, 3 * SEGMENT)
    assert store.warm == taken(store.arena) > 3 * SEGMENT


def test_memory_that_was_needed_for_a_moment_between_two_looks_stays(store: ArenaStore) -> None:
    store.attach_session(Session("s", os.getpid(), 1))
    store.trim(0.0)
    store.reserve("s", "b" * 32, 3 * SEGMENT)
    store.trim(1.0)
    store.release("s", "b" * 32)
    for now_s in (2.0, KEEP_WARM_S):
        store.trim(now_s)
        assert store.warm == 3 * SEGMENT
    store.trim(2 * KEEP_WARM_S)
    assert store.warm == SEGMENT


def test_an_arena_gives_up_only_what_is_free_at_its_end() -> None:
    extents = FreeRanges(1024, [(0, 64), (512, 64)])
    assert extents.used_end == 576
    extents.shrink(640)
    assert extents.ranges() == [(64, 448), (576, 64)] and extents.end == 640
    with pytest.raises(ValueError):
        extents.shrink(512)
    extents.grow(1024)
    assert extents.ranges() == [(64, 448), (576, 448)]
    assert FreeRanges(64, [(0, 64)]).used_end == 64 and FreeRanges(64).used_end == 0


def test_a_tenant_that_is_told_again_what_it_may_have_on_disk_has_that(grids: Make) -> None:
    standalone_grid = grids(quota=2 * MB, spill_bytes=0)
    grid = standalone_grid.connect()
    standalone_grid.admit(quota=2 * MB, spill_bytes=8 * MB)
    for number in range(4):
        grid.put([bytes([number]) * MB], kind="k", meta={})
    assert len(grid.blocks()) == 4 and grid.usage().spilled >= 2 * MB
