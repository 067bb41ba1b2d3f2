"""Where blocks lie, who has to go, and what is remembered: the pure parts of the grid."""

from __future__ import annotations

import math
import mmap
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.grid import mapping
from fairlead.grid.allocator import FreeRanges
from fairlead.grid.catalogue import (
    RESERVED,
    RESIDENT,
    SPILLED,
    Catalogue,
    Change,
    Ended,
    Entry,
    Pin,
    Removed,
    Session,
    Unpin,
)
from fairlead.grid.credentials import is_same_process, start_ticks
from fairlead.grid.errors import Refusal, check_facts, check_room, check_session
from fairlead.grid.eviction import Candidate, order, shared_bytes, worth
from fairlead.grid.journal import Journal, JournalFull
from fairlead.grid.layout import Layout, read_header
from fairlead.grid.spill import PIECE, TAG, Cipher, DamagedSpill, Disk, plain_bytes, sealed_bytes
from fairlead.grid.values import aligned, is_snapshot, snapshot_job, snapshot_label
from tests.waiting import until

SIZES = st.integers(1, 5000)


@given(st.lists(st.tuples(st.booleans(), SIZES), max_size=60), st.integers(0, 40_000))
def test_taken_ranges_never_overlap_and_all_comes_back(steps: list[tuple[bool, int]], end: int) -> None:
    end = aligned(end)
    extents = FreeRanges(end)
    held: list[tuple[int, int]] = []
    for take, number in steps:
        if take:
            offset = extents.allocate(number)
            if offset is None:
                assert extents.largest_bytes < aligned(number)
                continue
            assert offset % 64 == 0 and offset >= 0 and offset + number <= end
            assert all(offset + aligned(number) <= other or other + aligned(size) <= offset for other, size in held)
            held.append((offset, number))
        elif held:
            extents.release(*held.pop(number % len(held)))
        assert extents.free_bytes == end - sum(aligned(size) for _, size in held)
        assert extents.ranges() == FreeRanges(end, held).ranges(), "free neighbours are one"
    for offset, size in held:
        extents.release(offset, size)
    assert extents.ranges() == ([(0, end)] if end else [])


def test_an_arena_that_grows_to_where_it_ends_has_no_more_room() -> None:
    extents = FreeRanges(128)
    extents.grow(128)
    extents.grow(64)
    assert (extents.free_bytes, extents.end, extents.ranges()) == (128, 128, [(0, 128)])
    assert extents.allocate(192) is None


@given(st.lists(SIZES, min_size=1, max_size=20))
def test_an_arena_that_grows_is_one_with_what_was_free_at_its_end(sizes: list[int]) -> None:
    extents, end = FreeRanges(), 0
    for size in sizes:
        end += aligned(size)
        extents.grow(end)
    assert extents.ranges() == [(0, end)] and extents.allocate(end) == 0 and extents.allocate(1) is None


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
    st.builds(Removed, st.sampled_from("abcdef")),
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
    for again in (Catalogue(past=told), Catalogue(past=first.as_changes())):
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
    with pytest.raises(JournalFull):
        journal.append(b"y" * 600)
    with pytest.raises(JournalFull):
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


def test_of_the_free_ranges_that_fit_the_smallest_is_taken_and_of_equal_ones_the_lowest() -> None:
    extents = FreeRanges(64 * 20, [(64 * 3, 64), (64 * 5, 64), (64 * 8, 64), (64 * 10, 64)])
    assert extents.ranges() == [(0, 192), (256, 64), (384, 128), (576, 64), (704, 576)]
    assert [extents.allocate(64), extents.allocate(64), extents.allocate(64)] == [256, 576, 384]
    assert [extents.allocate(65), extents.allocate(129), extents.allocate(0)] == [0, 704, 128]
    assert extents.allocate(64 * 20) is None
    with pytest.raises(ValueError, match="overlaps"):
        FreeRanges(640, [(0, 65), (64, 64)])
    assert FreeRanges(640, [(64, 1), (0, 64)]).ranges() == [(128, 512)]


def test_what_a_block_is_worth_is_its_cost_by_its_size_and_uses_above_the_inflation() -> None:
    assert worth(Candidate("a", 1000, 2.0, 3, 0.5)) == 0.5 + 3 * 2.0 / 1000
    assert worth(Candidate("a", 10**9, 0.0, 0, 0.0)) == pytest.approx((1e-3 + 1.0) / 10**9), "as long as a disk reads"
    assert worth(Candidate("a", 0, 1.0, 1, 0.0)) == 1.0
    blocks = [Candidate("c", 10, 1.0, 1, 0.0), Candidate("a", 10, 1.0, 1, 0.0), Candidate("b", 10, 0.5, 1, 0.0),
              Candidate("s", 10, 0.1, 1, 0.0, rank=1), Candidate("p", 10, 0.1, 1, 0.0, pinned=True)]  # fmt: skip
    assert [block.id for block in order(blocks)] == ["b", "a", "c", "s"]


def test_a_journal_is_crowded_when_half_of_what_fits_is_said_and_rewritten_in_the_other_half() -> None:
    memory = os.memfd_create("journal")
    os.ftruncate(memory, 4096 + 2 * 1000)
    journal = Journal(memory)
    for number in range(1, 11):
        assert journal.is_half_full is (50 * (number - 1) > 500)
        journal.append(bytes(46))
    journal.append(b"x")
    assert journal.is_half_full and journal.length == 505
    for turn in range(3):
        journal.rewrite([b"one", str(turn).encode()])
        assert not journal.is_half_full and Journal(memory).entries() == [b"one", str(turn).encode()]
    journal.append(bytes(1000 - journal.length - 4))
    with pytest.raises(JournalFull):
        journal.append(b"")
    with pytest.raises(JournalFull):
        journal.rewrite([bytes(997)])
    assert Journal(memory).entries()[:2] == [b"one", b"2"]
    journal.rewrite([bytes(996)])
    assert journal.length == 1000
    journal.close()
    os.close(memory)


@pytest.mark.parametrize("nbytes", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE])
def test_a_sealed_block_is_as_long_as_was_said_and_opens_for_its_own_name_and_tenant(nbytes: int) -> None:
    cipher, data = Cipher(b"k" * 32, "vision"), os.urandom(nbytes)
    sealed = b"".join(cipher.seal("a" * 32, memoryview(data)))
    assert len(sealed) == sealed_bytes(nbytes) and plain_bytes(len(sealed)) == nbytes
    assert bytes(cipher.unseal("a" * 32, memoryview(sealed))) == data
    assert b"".join(Cipher(b"k" * 32, "vision").seal("a" * 32, memoryview(data))) != sealed, "never the same nonce"
    for other, block in (
        (cipher, "b" * 32),
        (Cipher(b"k" * 32, "text"), "a" * 32),
        (Cipher(b"x" * 32, "vision"), "a" * 32),
    ):
        with pytest.raises(DamagedSpill):
            other.unseal(block, memoryview(sealed))
    with pytest.raises(DamagedSpill):
        cipher.unseal("a" * 32, memoryview(sealed[:-1] + bytes([sealed[-1] ^ 1])))
    if nbytes > PIECE:  # pieces in another order
        first, second = sealed[8 : 8 + PIECE + TAG], sealed[8 + PIECE + TAG :]
        with pytest.raises(DamagedSpill):
            cipher.unseal("a" * 32, memoryview(sealed[:8] + second + first))


def test_a_block_on_disk_is_whole_or_not_there(tmp_path: Path) -> None:
    disk, data = Disk(tmp_path / "t", Cipher(b"k" * 32, "vision")), bytearray(1000)
    disk.write("a" * 32, memoryview(b"x" * 1000))
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["a" * 32]
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o700
    disk.read("a" * 32, memoryview(data))
    assert data == b"x" * 1000
    disk.write("a" * 32, memoryview(b"y" * 10))
    with pytest.raises(DamagedSpill):
        disk.read("a" * 32, memoryview(data))
    disk.drop("a" * 32)
    disk.drop("a" * 32)
    with pytest.raises(OSError):
        disk.read("a" * 32, memoryview(data))


def test_what_a_worker_may_say_of_a_block_has_limits() -> None:
    for block, nbytes in (
        ("a" * 31, 1),
        ("a" * 33, 1),
        ("A" * 32, 1),
        ("g" * 32, 1),
        ("a" * 32, -1),
        ("a" * 32 + "\n", 1),
    ):
        with pytest.raises(Refusal) as refused:
            check_room(block, nbytes)
        assert refused.value.problem.code == "invalid-spec"
    check_room("0" * 32, 0)
    for kind, label, cost_s in (
        ("k" * 201, "", 0.0),
        ("", "l" * 201, 0.0),
        ("", "", -1e-9),
        ("", "", math.inf),
        ("", "", math.nan),
    ):
        with pytest.raises(Refusal):
            check_facts(kind, label, cost_s)
    check_facts("k" * 200, "l" * 200, 0.0)
    for session in ("", "s" * 65):
        with pytest.raises(Refusal):
            check_session(session)
    check_session("s" * 64)


def test_a_process_is_known_by_when_it_started() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    since = start_ticks(child.pid)
    assert since > start_ticks(os.getpid()) > 0
    assert (
        is_same_process(child.pid, since)
        and not is_same_process(child.pid, since + 1)
        and not is_same_process(child.pid, 0)
    )
    assert child.stdin is not None
    child.stdin.close()
    until(lambda: not is_same_process(child.pid, since), what="it is a zombie")
    assert start_ticks(child.pid) == 0
    child.wait()
    assert start_ticks(child.pid) == 0 and not is_same_process(child.pid, 0)


def test_pages_are_touched_once_and_windows_lie_inside() -> None:
    memory = mapping.create("arena", 10 * (4 << 20) + 4096)
    arena = mapping.Mapping(memory, 10 * (4 << 20) + 4096, writable=True)
    assert not arena.is_prefaulted(0, 1)
    arena.prefault(5 << 20, 4 << 20)
    assert (
        arena.is_prefaulted(4 << 20, 8 << 20)
        and not arena.is_prefaulted(0, 8 << 20)
        and not arena.is_prefaulted(4 << 20, (8 << 20) + 1)
    )
    assert os.fstat(memory).st_blocks * 512 == 8 << 20
    arena.prefault(10 * (4 << 20), 4096)
    assert arena.is_prefaulted(10 * (4 << 20), 1 << 30), "as far as it goes"
    arena.prefault(arena.size - 1, 1 << 30)
    arena.view(7, 3)[:] = b"abc"
    assert bytes(mapping.Mapping(memory, 4096, writable=False).view(7, 3)) == b"abc"
    for offset, nbytes in ((-1, 1), (0, arena.size + 1), (arena.size, 1), (4, -1)):
        with pytest.raises(ValueError):
            arena.view(offset, nbytes)
    assert len(arena.view(arena.size, 0)) == 0
    with pytest.raises(TypeError):
        mapping.Mapping(memory, 4096, writable=False).view(0, 1)[:] = b"x"
    mapping.punch_hole(memory, 0, 4096)
    assert bytes(arena.view(7, 3)) == bytes(3)
    mapping.punch_hole(memory, 10, 10)
    os.close(memory)


def test_parts_lie_aligned_with_their_header_behind_them_and_zeros_between() -> None:
    layout = Layout([10, 0, 64], {"a": 1})
    assert layout.parts == [(0, 10), (64, 0), (64, 64)] and layout.body == 128
    room = memoryview(bytearray(b"\xff" * layout.nbytes))
    layout.finish(room)
    assert bytes(room[10:64]) == bytes(54) and bytes(room[:10]) == b"\xff" * 10
    found = read_header(room[layout.body :])
    assert (found.meta, found.parts) == ({"a": 1}, layout.parts)
    longer = Layout([10], {}, nbytes=200)
    assert longer.body == 200 - len(longer.header)
    room = memoryview(bytearray(b"\xff" * 200))
    longer.finish(room)
    assert bytes(room[10 : longer.body]) == bytes(longer.body - 10)
    exact = 64 + len(longer.header)
    assert Layout([10], {}, nbytes=exact).body == 64
    with pytest.raises(ValueError, match="do not fit"):
        Layout([10], {}, nbytes=exact - 1)
    whole = Layout.opaque(100)
    room = memoryview(bytearray(b"\xff" * 100))
    whole.finish(room)
    assert bytes(room) == b"\xff" * 100 and whole.nbytes == whole.body == 100


@pytest.mark.parametrize(
    ("label", "snapshot", "job"),
    [("snapshot/j-1", True, "j-1"), ("snapshot/", True, None), ("snapshot/a/b", True, None),
     ("snapshots/j", False, None), ("dataset/x", False, None), ("snapshot/.a", True, None)],
)  # fmt: skip
def test_a_label_says_whose_state_it_is(label: str, snapshot: bool, job: str | None) -> None:
    assert (is_snapshot(label), snapshot_job(label)) == (snapshot, job)
    assert snapshot_job(snapshot_label("train-x")) == "train-x"
    assert [aligned(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128] and aligned(5, 4) == 8


def test_a_process_is_known_whatever_it_calls_itself() -> None:
    code = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'\\xff) Z 1 (', 0, 0, 0); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        since = start_ticks(child.pid)
        assert since > 0 and is_same_process(child.pid, since)
        child.stdin.close()


def test_memory_behind_a_range_that_is_given_back_stays_as_it_is() -> None:
    page = mmap.PAGESIZE
    memory = mapping.create("arena", 6 * page)
    try:
        os.pwrite(memory, b"x" * (6 * page), 0)
        mapping.punch_hole(memory, page, 3 * page)
        held = os.pread(memory, 6 * page, 0)
        assert held == b"x" * page + bytes(2 * page) + b"x" * (3 * page)
        mapping.punch_hole(memory, 4 * page, 4 * page)
        assert os.pread(memory, 6 * page, 0) == held, "there is nothing between"
    finally:
        os.close(memory)


def test_a_block_without_a_byte_keeps_its_place_when_the_room_is_counted_anew() -> None:
    catalogue = Catalogue(lambda change: None)
    catalogue.apply(Entry("a", 0, RESIDENT, offset=0))
    assert catalogue.free_ranges(256).allocate(1) == 64


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="ends a thread by the number of a system call")
def test_a_process_lives_on_when_its_first_thread_has_ended() -> None:
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "ctypes.CDLL(None).syscall(60, 0)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        until(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z", what="it ended")
        assert start_ticks(child.pid) > 0 and is_same_process(child.pid, start_ticks(child.pid))
    finally:
        child.kill()
        child.wait()
    assert start_ticks(child.pid) == 0
