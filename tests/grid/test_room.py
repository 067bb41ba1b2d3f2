"""Where blocks lie, who has to go, and what is remembered: the pure parts of the grid."""

from __future__ import annotations

import mmap
import os
import random
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.grid.allocator import Extents
from fairlead.grid.catalogue import (
    RESERVED,
    RESIDENT,
    SPILLED,
    Catalogue,
    Change,
    Ended,
    Entry,
    Gone,
    Pin,
    Session,
    Unpin,
)
from fairlead.grid.eviction import Candidate, order, shared_bytes, worth
from fairlead.grid.journal import Full, Journal
from fairlead.grid.values import aligned
from tests.waiting import until

SIZES = st.integers(1, 5000)


@given(st.lists(st.tuples(st.booleans(), SIZES), max_size=60), st.integers(0, 40_000))
def test_taken_ranges_never_overlap_and_all_comes_back(steps: list[tuple[bool, int]], end: int) -> None:
    end = aligned(end)
    extents = Extents(end)
    held: list[tuple[int, int]] = []
    for take, number in steps:
        if take:
            offset = extents.take(number)
            if offset is None:
                assert extents.largest < aligned(number)
                continue
            assert offset % 64 == 0 and offset >= 0 and offset + number <= end
            assert all(offset + aligned(number) <= other or other + aligned(size) <= offset for other, size in held)
            held.append((offset, number))
        elif held:
            extents.give_back(*held.pop(number % len(held)))
        assert extents.free == end - sum(aligned(size) for _, size in held)
        assert extents.ranges() == Extents(end, held).ranges(), "free neighbours are one"
    for offset, size in held:
        extents.give_back(offset, size)
    assert extents.ranges() == ([(0, end)] if end else [])


def test_an_arena_that_grows_to_where_it_ends_has_no_more_room() -> None:
    extents = Extents(128)
    extents.grow(128)
    extents.grow(64)
    assert (extents.free, extents.end, extents.ranges()) == (128, 128, [(0, 128)])
    assert extents.take(192) is None


@given(st.lists(SIZES, min_size=1, max_size=20))
def test_an_arena_that_grows_is_one_with_what_was_free_at_its_end(sizes: list[int]) -> None:
    extents, end = Extents(), 0
    for size in sizes:
        end += aligned(size)
        extents.grow(end)
    assert extents.ranges() == [(0, end)] and extents.take(end) == 0 and extents.take(1) is None


CANDIDATES = st.builds(
    Candidate, st.uuids().map(str), st.integers(1, 1 << 30), st.floats(0, 1e4), st.integers(0, 50),
    st.floats(0, 10), st.booleans(),
)  # fmt: skip


@given(st.lists(CANDIDATES, max_size=30), st.randoms())
def test_what_is_in_use_never_goes_and_the_order_of_blocks_does_not_matter(
    blocks: list[Candidate], shuffle: random.Random
) -> None:
    went = order(blocks)
    assert {block.id for block in went} == {block.id for block in blocks if not block.pinned}
    assert [worth(block) for block in went] == sorted(worth(block) for block in went)
    mixed = list(blocks)
    shuffle.shuffle(mixed)
    assert order(mixed) == went


@given(CANDIDATES, st.integers(1, 5), st.floats(1.1, 10))
def test_dear_used_and_small_blocks_stay_longer(block: Candidate, more: int, dearer: float) -> None:
    def changed(**fields: object) -> Candidate:
        known = {name: getattr(block, name) for name in Candidate.__slots__}
        return Candidate(**{**known, **fields})  # type: ignore[arg-type]

    assert worth(changed(uses=max(1, block.uses) + more)) >= worth(block)
    assert worth(changed(cost_s=max(1.0, block.cost_s) * dearer)) >= worth(changed(cost_s=max(1.0, block.cost_s)))
    assert worth(changed(nbytes=block.nbytes * 2)) <= worth(block)


def test_a_shared_block_is_divided_among_those_who_use_it() -> None:
    users = {"a": frozenset({"one", "two"}), "b": frozenset({"one"}), "gone": frozenset({"two"})}
    assert shared_bytes({"a": 100, "b": 30}, users) == {"one": 80, "two": 50}


CHANGES = st.one_of(
    st.builds(Entry, st.sampled_from("abcdef"), st.integers(1, 10**6), st.sampled_from([RESERVED, RESIDENT, SPILLED]),
              st.integers(0, 100), session=st.sampled_from(["x", "y"])),
    st.builds(Gone, st.sampled_from("abcdef")),
    st.builds(Session, st.sampled_from("xyz"), st.integers(1, 9), st.integers(1, 9), st.just("job")),
    st.builds(Ended, st.sampled_from("xyz")),
    st.builds(Pin, st.sampled_from("xyz"), st.sampled_from("abcdef")),
    st.builds(Unpin, st.sampled_from("xyz"), st.sampled_from("abcdef")),
)  # fmt: skip


@given(st.lists(CHANGES, max_size=60))
def test_a_catalogue_that_is_read_again_is_the_same(changes: list[Change]) -> None:
    told: list[Change] = []
    first = Catalogue(told.append)
    for change in changes:
        first.apply(change)
    for again in (Catalogue(past=told), Catalogue(past=first.everything())):
        assert (again.entries, again.sessions, again.pins) == (first.entries, first.sessions, first.pins)
        assert (again.used, again.spilled) == (first.used, first.spilled)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=40), st.integers(0, 40))
def test_a_journal_says_what_was_said_whoever_reads_it(entries: list[bytes], rewritten: int) -> None:
    descriptor = os.memfd_create("journal")
    try:
        os.ftruncate(descriptor, 4096 + 2 * 20_000)
        journal, kept = Journal(descriptor), list[bytes]()
        for number, entry in enumerate(entries):
            if number == rewritten:
                kept = kept[::2]
                journal.rewrite(kept)
            journal.append(entry)
            kept.append(entry)
        assert Journal(descriptor).entries() == journal.entries() == kept
    finally:
        os.close(descriptor)


def test_a_journal_that_is_full_says_so_and_loses_nothing() -> None:
    descriptor = os.memfd_create("journal")
    os.ftruncate(descriptor, 4096 + 2 * 1000)
    journal = Journal(descriptor)
    journal.append(b"x" * 600)
    with pytest.raises(Full):
        journal.append(b"y" * 600)
    with pytest.raises(Full):
        journal.rewrite([b"z" * 2000])
    assert journal.entries() == [b"x" * 600]
    os.close(descriptor)


def test_the_word_that_commits_is_never_seen_half_written() -> None:
    descriptor = os.memfd_create("journal")
    os.ftruncate(descriptor, 4096 + 2 * 1000)
    lengths = (0x0000_FFFF_FFFF, 0xFFFF_0000_0000)
    if (writer := os.fork()) == 0:
        journal = Journal(descriptor)
        while True:
            for journal.length in lengths:
                journal._commit()
    try:
        with mmap.mmap(descriptor, 4096) as seen, memoryview(seen)[:8] as first, first.cast("Q") as word:
            until(lambda: word[0], what="its first word")
            assert {word[0] for _ in range(500_000)} <= set(lengths)
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        os.close(descriptor)
