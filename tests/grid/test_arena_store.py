"""One tenant's arena without its process: what is promised to writers, readers and the machine, said and counted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from fairlead.grid import mapping
from fairlead.grid.arena_store import ArenaStore
from fairlead.grid.catalogue import RESIDENT, SPILLED, Session
from fairlead.grid.credentials import start_ticks
from fairlead.grid.errors import Refusal
from fairlead.grid.messages import Admit, Commit, Placed, PutSmall
from fairlead.grid.values import SEGMENT, aligned, snapshot_label

KB = 1 << 10
QUOTA = 64 * KB
A, B, C, D, E = ("abcde"[place] * 32 for place in range(5))
ME = os.getpid()
Make = Callable[..., ArenaStore]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes stores over one arena and one journal: the second one is that of a process started anew."""
    made: dict[str, int] = {}

    def make(quota: int = QUOTA, spill_bytes: int = 0, size: int = 1 << 20, held: tuple[str, ...] = ()) -> ArenaStore:
        if not made:
            made["arena"] = mapping.create("arena", size)
            made["journal"] = mapping.create("journal", mapping.JOURNAL_BYTES)
            made["reading"] = mapping.read_only(made["arena"])
        admit = Admit("tenant", quota, key=b"k" * 32, spill_bytes=spill_bytes)
        store = ArenaStore(admit, made["arena"], made["reading"], made["journal"], tmp_path)
        store.attach_session(session("s"), held)
        return store

    yield make
    for descriptor in made.values():
        os.close(descriptor)


def session(name: str, pid: int = ME, job: str = "") -> Session:
    return Session(name, pid, start_ticks(pid), job)


def put(
    store: ArenaStore, block: str, nbytes: int = 16 * KB, cost_s: float = 0.0, label: str = "", who: str = "s"
) -> Placed:
    return store.put(who, PutSmall(block, block[:1].encode() * nbytes, 0, "k", label, cost_s))


def content(store: ArenaStore, placed: Placed) -> bytes:
    return bytes(store.view(placed.offset, placed.nbytes))


def where(store: ArenaStore) -> dict[str, str]:
    return {block[0]: entry.state for block, entry in store.catalogue.entries.items()}


def code(refused: pytest.ExceptionInfo[Refusal]) -> str:
    return refused.value.problem.code


# ---------------------------------------------------------------- writing


def test_room_asked_for_twice_is_the_same_room_and_nobody_elses(make: Make) -> None:
    store = make()
    store.attach_session(session("other"))
    first = store.reserve("s", A, 1000)
    assert store.reserve("s", A, 1000) == first and not store.contains(A)
    for who, nbytes in (("other", 1000), ("s", 1001)):
        with pytest.raises(Refusal, match="exists already") as refused:
            store.reserve(who, A, nbytes)
        assert code(refused) == "conflict"
    with pytest.raises(Refusal, match="was not reserved"):
        store.commit("other", Commit(A, 0, "k"))
    assert store.usage().used == aligned(1000)


def test_a_block_is_what_was_committed_first(make: Make) -> None:
    store = make()
    store.reserve("s", A, 1000)
    for header in (-1, 1001):
        with pytest.raises(Refusal, match="is longer than its block"):
            store.commit("s", Commit(A, header, "k"))
    assert not store.contains(A)
    placed = store.commit("s", Commit(A, 1000, "table", "mine", 2.5))
    assert (placed.header, placed.kind, placed.nbytes) == (1000, "table", 1000) and store.contains(A)
    entry = store.catalogue.entries[A]
    assert (entry.label, entry.cost_s, entry.session, entry.state) == ("mine", 2.5, "", RESIDENT)
    store.reserve("s", D, 1000)
    store.commit("s", Commit(D, 100, "k"))
    assert store.catalogue.info(store.catalogue.entries[D]).nbytes == 900, "without its header"
    assert store.commit("s", Commit(A, 5, "other")) == placed  # said again: its answer was lost
    with pytest.raises(Refusal, match="was not reserved"):
        store.commit("s", Commit(B, 0, "k"))


def test_a_small_block_that_is_put_again_is_the_one_that_is_there(make: Make) -> None:
    store = make()
    first = put(store, A, 100)
    assert put(store, A, 100) == first and content(store, first) == b"a" * 100
    assert store.usage().blocks == 1


def test_room_that_is_not_committed_comes_back_when_it_is_released_or_its_session_ends(make: Make) -> None:
    store = make()
    store.attach_session(session("other"))
    store.reserve("s", A, QUOTA)
    store.release("other", A)
    with pytest.raises(Refusal, match="has no room for"):
        put(store, B)
    store.release("s", A)
    assert store.usage().used == 0
    store.reserve("s", A, QUOTA)
    store.end_session("s")
    assert store.usage().used == 0 and A not in store.catalogue.entries
    store.attach_session(session("s"))
    assert store.reserve("s", B, QUOTA).offset == 0


# ---------------------------------------------------------------- room


def test_what_can_never_fit_is_refused_at_once_and_what_fits_exactly_is_taken(make: Make) -> None:
    store = make()
    put(store, A)
    with pytest.raises(Refusal) as refused:
        store.reserve("s", B, QUOTA + 1)
    assert code(refused) == "too-large" and store.contains(A), "nobody went for it"
    assert store.reserve("s", B, QUOTA).nbytes == QUOTA
    assert where(store) == {"b": "reserved"}


def test_memory_is_taken_from_the_machine_by_segments_and_never_beyond_the_quota(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    store = make(quota=3 * SEGMENT // 2, size=4 * SEGMENT)
    assert store.warm == 0
    put(store, A, 10)
    assert store.warm == SEGMENT == os.fstat(store.arena).st_blocks * 512
    assert store.grow(1) and store.warm == 3 * SEGMENT // 2
    assert not store.grow(1) and store.warm == 3 * SEGMENT // 2
    assert not caplog.records, "a full quota is no trouble"
    large = make(quota=4 * SEGMENT, size=4 * SEGMENT)
    assert large.grow(2 * SEGMENT + 1) and large.warm == 4 * SEGMENT


def test_who_is_worth_least_goes_and_its_room_is_used_again(make: Make) -> None:
    store = make()
    for block, cost_s in ((A, 3.0), (B, 1.0), (C, 2.0), (D, 4.0)):
        put(store, block, cost_s=cost_s)
    placed = put(store, E, cost_s=9.0)
    assert set(where(store)) == set("acde") and placed.offset == 16 * KB and store.usage().evictions == 1
    store.open("s", C)
    put(store, B, cost_s=9.0)
    assert set(where(store)) == set("bcde"), "what is open stays, however little it is worth"
    assert store.usage().evictions == 2


def test_nothing_goes_while_all_is_in_use_and_the_refusal_says_how_much_that_is(make: Make) -> None:
    store = make()
    for block in (A, B, C, D):
        put(store, block)
        store.open("s", block)
    with pytest.raises(Refusal, match="of tenant tenant are in use"):
        put(store, E)
    store.release("s", C)
    put(store, E)
    assert set(where(store)) == set("abde")


def test_sessions_whose_process_has_ended_give_way_before_anybody_is_refused(make: Make) -> None:
    store = make()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    store.attach_session(session("gone", child.pid))
    store.reserve("gone", A, QUOTA)
    store.disconnect_session("gone")
    assert store.catalogue.held("gone") == {A}, "it lives, and may still write"
    assert not store.end_dead_sessions()
    child.communicate(b"\n")
    put(store, B)
    assert where(store) == {"b": RESIDENT} and "gone" not in store.catalogue.sessions


def test_a_smaller_quota_holds_from_the_next_block_on(make: Make) -> None:
    store = make()
    for block in (A, B, C, D):
        put(store, block)
    store.set_quota(32 * KB, 0)
    assert len(where(store)) == 4 and store.usage().quota == 32 * KB
    put(store, E)
    assert len(where(store)) == 2 and store.usage().used == 32 * KB


# ---------------------------------------------------------------- disk


def test_what_goes_to_disk_comes_back_as_it_was_and_leaves_the_disk(make: Make, tmp_path: Path) -> None:
    store = make(spill_bytes=QUOTA)
    for block in (A, B, C, D, E):
        put(store, block)
    assert where(store)["a"] == SPILLED and store.contains(A) and store.usage().spilled == 16 * KB
    assert len(list(tmp_path.rglob(A))) == 1
    placed = store.open("s", A)
    assert content(store, placed) == b"a" * 16 * KB and not list(tmp_path.rglob(A))
    assert (store.usage().spilled, store.usage().used, store.usage().blocks) == (16 * KB, QUOTA, 5)
    assert store.catalogue.pins == {A: {"s"}}
    assert store.open("s", A) == placed and store.catalogue._uses[A][0] == 2, "opening it twice is one use"


def test_the_disk_holds_no_more_than_it_may_and_keeps_what_is_worth_most(make: Make) -> None:
    store = make(spill_bytes=32 * KB)
    for block, cost_s in ((A, 5.0), (B, 1.0), (C, 4.0), (D, 6.0), (E, 7.0)):
        put(store, block, cost_s=cost_s)
    assert where(store)["b"] == SPILLED
    for number, cost_s in ((1, 8.0), (2, 9.0)):
        put(store, str(number) * 32, cost_s=cost_s)
    spilled = {block for block, state in where(store).items() if state == SPILLED}
    assert spilled == {"a", "c"} and "b" not in where(store), "the cheapest on disk made way"
    assert store.usage().spilled == 32 * KB


def test_a_block_larger_than_the_disk_may_hold_is_lost_and_costs_nobody_a_place(make: Make) -> None:
    store = make(spill_bytes=16 * KB)
    put(store, A, cost_s=1.0)
    put(store, B, 48 * KB, cost_s=9.0)
    put(store, C, cost_s=2.0)
    assert where(store) == {"a": SPILLED, "b": RESIDENT, "c": RESIDENT}
    store.open("s", C)
    put(store, D, 40 * KB, cost_s=9.0)
    assert where(store) == {"a": SPILLED, "c": RESIDENT, "d": RESIDENT}


def test_without_a_place_on_disk_what_goes_is_lost(make: Make, tmp_path: Path) -> None:
    store = make(spill_bytes=0)
    for block in (A, B, C, D, E):
        put(store, block)
    assert "a" not in where(store) and not [path for path in tmp_path.rglob("*") if path.is_file()]
    with pytest.raises(Refusal, match="there is no block") as refused:
        store.open("s", A)
    assert code(refused) == "not-found"


def test_a_spoiled_block_is_refused_and_its_room_comes_back(make: Make, tmp_path: Path) -> None:
    store = make(spill_bytes=QUOTA)
    for block in (A, B, C, D, E):
        put(store, block)
    (file,) = tmp_path.rglob(A)
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(Refusal, match="cannot be restored") as refused:
        store.open("s", A)
    assert code(refused) == "unavailable"
    used = store.usage().used
    assert used == 48 * KB and store._free_ranges.free_bytes + used >= QUOTA
    put(store, "1" * 32)
    assert store.usage().used == QUOTA


def test_a_dropped_block_leaves_memory_or_disk(make: Make, tmp_path: Path) -> None:
    store = make(spill_bytes=QUOTA)
    for block in (A, B, C, D, E):
        put(store, block)
    store.drop("s", A)
    assert not list(tmp_path.rglob(A)) and store.usage().spilled == 0
    store.drop("s", B)
    assert store.usage().used == 48 * KB and not store.contains(B)
    store.open("s", C)
    for block, why in ((C, "conflict"), (A, "not-found")):
        with pytest.raises(Refusal) as refused:
            store.drop("s", block)
        assert code(refused) == why
    store.reserve("s", A, 10)
    with pytest.raises(Refusal, match="there is no block"):
        store.drop("s", A)


def test_blocks_of_a_label_go_but_for_those_in_use_or_still_written(make: Make) -> None:
    store = make()
    for block, label in ((A, "mine"), (B, "mine"), (C, "yours")):
        put(store, block, label=label)
    store.open("s", B)
    store.reserve("s", D, 10)
    store.discard("mine")
    assert set(where(store)) == set("bcd")


# ---------------------------------------------------------------- sessions


def test_a_session_is_one_process(make: Make) -> None:
    store = make()
    with pytest.raises(Refusal, match="belongs to another process") as refused:
        store.attach_session(Session("s", ME, 1))
    assert code(refused) == "forbidden"
    with pytest.raises(Refusal):
        store.attach_session(session("s", os.getppid()))


def test_who_comes_back_keeps_what_it_still_holds_and_no_more(make: Make) -> None:
    store = make()
    for block in (A, B):
        put(store, block)
        store.open("s", block)
    store.disconnect_session("s")
    assert store.catalogue.held("s") == {A, B}, "it may read while its process lives"
    store.attach_session(session("s"), [B, C])
    assert store.catalogue.held("s") == {B}
    store.disconnect_session("s")
    store.attach_session(session("s"), [])
    store.disconnect_session("s")
    assert "s" not in store.catalogue.sessions, "who holds nothing is forgotten with its line"


def test_what_a_new_session_says_it_has_open_is_pinned_if_it_is_there(make: Make) -> None:
    store = make(spill_bytes=QUOTA)
    for block in (A, B, C, D, E):
        put(store, block)
    store.reserve("s", "1" * 32, 64)
    store.attach_session(session("late"), [B, C, D, "1" * 32, "2" * 32])
    held = store.catalogue.held("late")
    assert held == {block for block in (B, C, D) if store.catalogue.entries[block].state == RESIDENT} and held


def test_a_tenant_has_only_so_many_sessions_and_dead_ones_do_not_count(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.grid.arena_store._MOST_SESSIONS", 3)
    store = make()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    store.attach_session(session("child", child.pid))
    store.attach_session(session("third"))
    with pytest.raises(Refusal, match="has 3 sessions"):
        store.attach_session(session("fourth"))
    store.connected.discard("child")
    child.communicate(b"\n")
    store.attach_session(session("fourth"))
    assert set(store.catalogue.sessions) == {"s", "third", "fourth"}


# ---------------------------------------------------------------- sums and figures


def test_blocks_are_summed_in_their_order_and_once_while_they_stay(make: Make) -> None:
    store = make(spill_bytes=QUOTA)
    put(store, A)
    put(store, B)
    store.reserve("s", C, 10)
    found = store.next_unhashed()
    assert found is not None and found[0].id == A and bytes(found[1]) == b"a" * 16 * KB
    store.record_digest(found[0], "sum-of-a")
    store.record_digest(found[0], "of a block that has changed since")
    assert store.open("s", A).digest == "sum-of-a"
    store.drop("s", B)
    assert store.next_unhashed() is None
    put(store, D)
    for block in (E, "1" * 32, "2" * 32):
        put(store, block)
    assert where(store)["d"] == SPILLED
    while (left := store.next_unhashed()) is not None:
        assert left[0].id != D
        store.record_digest(left[0], "x")
    for block in (E, "1" * 32):
        store.drop("s", block)
    store.open("s", D)
    again = store.next_unhashed()
    assert again is not None and again[0].id == D, "what came back is summed then"


def test_use_is_told_by_block_label_and_job(make: Make) -> None:
    store = make(spill_bytes=QUOTA)
    store.attach_session(session("w1", job="one"))
    store.attach_session(session("w2", job="two"))
    put(store, A, 1000, label="x")
    put(store, B, 3000, label="y")
    put(store, C, 500, label="x")
    for who, block in (("w1", A), ("w2", A), ("w2", B), ("s", C)):
        store.open(who, block)
    store.reserve("s", D, 100)
    use = store.usage()
    assert use.by_label == {"y": 3000, "x": 1500} and list(use.by_label) == ["y", "x"]
    assert use.by_job["one"] == 500 and use.by_job["two"] == 3500 and use.by_job[""] == 500
    assert (use.blocks, use.pinned, use.evictions, use.spilled) == (3, 4500, 0, 0)
    assert use.used == sum(map(aligned, (1000, 3000, 500, 100))) and use.warm == store.warm > 0
    info = store.catalogue.info(store.catalogue.entries[A])
    assert (info.pins, info.nbytes, info.label, info.where) == (2, 1000, "x", RESIDENT)


def test_only_the_largest_labels_are_told(make: Make) -> None:
    store = make(quota=1 << 20)
    for number in range(300):
        put(store, f"{number:032x}", 1 + number, label=f"l{number}")
    labels = store.usage().by_label
    assert len(labels) == 256 and next(iter(labels)) == "l299" and "l43" not in labels and "l44" in labels


def test_a_process_started_anew_finds_everything(make: Make) -> None:
    store = make(spill_bytes=QUOTA)
    for block, cost_s in ((A, 1.0), (B, 9.0), (C, 3.0), (D, 4.0), (E, 5.0)):
        put(store, block, cost_s=cost_s, label=snapshot_label("j") if block == B else "x")
    store.open("s", B)
    store.reserve("s", "1" * 32, 64)
    found = store.next_unhashed()
    assert found is not None
    again = make(spill_bytes=QUOTA, held=(B, "1" * 32))
    assert again.usage() == msgspec.structs.replace(store.usage(), evictions=0) and again.warm == store.warm
    assert again.catalogue.entries == store.catalogue.entries and again.catalogue.pins == store.catalogue.pins
    assert (first := again.next_unhashed()) is not None and first[0].id in (B, C, D, E)
    assert content(again, again.open("s", A)) == b"a" * 16 * KB
    assert again.reserve("s", "2" * 32, 64).offset != again.catalogue.entries["1" * 32].offset
