"""The catalogue alone: who goes when room is needed, and that it comes back from its own log as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from fairlead.grid.errors import Refusal
from fairlead.grid.values import BlockId, BlockInfo, aligned, snapshot_label

COSTS = st.sampled_from([0.0, 1.0, 1e20, 1e308])
IDS = st.sampled_from("abcdef")
SESSIONS = st.sampled_from(["s/1", "s/2"])
STEPS = st.lists(st.tuples(st.sampled_from(["put", "pin", "unpin", "victim", "spill", "end"]), IDS, SESSIONS, COSTS))


def resident(block: str, cost_s: float = 0.0, nbytes: int = 1000, **fields: Any) -> Entry:
    return Entry(block, nbytes, RESIDENT, 0, kind="k", cost_s=cost_s, **fields)


def test_a_block_that_is_pinned_after_the_order_was_made_stays() -> None:
    """Also where what it is worth is too large to grow by a use."""
    for inflated in (False, True):
        catalogue = Catalogue()
        if inflated:
            catalogue.record_eviction(resident("huge", 1e20, 1))
        for block in "abc":
            catalogue.apply(resident(block))
        first = catalogue.victim()
        assert first is not None and first.id == "a"
        catalogue.apply(Removed("a"))
        catalogue.apply(Pin("s/1", "b"))
        second = catalogue.victim()
        assert second is not None and second.id == "c"
        catalogue.apply(Removed("c"))
        assert catalogue.victim() is None


@given(STEPS)
def test_who_goes_is_resident_and_used_by_nobody(steps: list[tuple[str, str, str, float]]) -> None:
    catalogue = Catalogue()
    for what, block, session, cost_s in steps:
        entry = catalogue.entries.get(block)
        match what:
            case "put" if entry is None:
                catalogue.apply(resident(block, cost_s))
            case "pin" if entry is not None and entry.state == RESIDENT:
                catalogue.apply(Pin(session, block))
            case "unpin" if session in catalogue.pins.get(block, ()):
                catalogue.apply(Unpin(session, block))
            case "end":
                catalogue.apply(Ended(session))
            case "victim" | "spill":
                free = [one for one in catalogue.entries.values() if one.state == RESIDENT]
                free = [one for one in free if one.id not in catalogue.pins]
                victim = catalogue.victim()
                assert (victim is None) == (not free)
                if victim is not None:
                    assert victim in free
                    least = min(catalogue.retention(one) for one in free)
                    assert catalogue.retention(victim) == least, "nobody who is worth less stays"
                    catalogue.record_eviction(victim)
                    gone = Entry(victim.id, victim.nbytes, SPILLED, cost_s=victim.cost_s)
                    catalogue.apply(gone if what == "spill" else Removed(victim.id))


def test_states_of_trainings_go_last_however_little_they_are_worth() -> None:
    catalogue = Catalogue()
    catalogue.apply(resident("a", 0.0, 10**9, label=snapshot_label("j")))
    catalogue.apply(resident("b", 1e6, 1))
    assert (victim := catalogue.victim()) is not None and victim.id == "b"


@given(STEPS)
def test_what_is_counted_is_what_is_there_and_survives_its_process(steps: list[tuple[str, str, str, float]]) -> None:
    said: list[Change] = []
    catalogue = Catalogue(said.append)
    for number, (what, block, session, cost_s) in enumerate(steps):
        entry = catalogue.entries.get(block)
        if session not in catalogue.sessions:
            catalogue.apply(Session(session, number, 1, "job"))
        if entry is None:
            catalogue.apply(Entry(block, 100 * number, RESERVED, number, session=session))
        elif what == "put":
            catalogue.apply(resident(block, cost_s, 100 * number))
        elif what == "spill":
            catalogue.apply(Entry(block, 100 * number, SPILLED))
        elif what == "pin":
            catalogue.apply(Pin(session, block))
        elif what == "unpin":
            catalogue.apply(Removed(block))
        else:
            catalogue.end_session(session)
        used = sum(max(aligned(one.nbytes), 64) for one in catalogue.entries.values() if one.state != SPILLED)
        spilled = sum(aligned(one.nbytes) for one in catalogue.entries.values() if one.state == SPILLED)
        assert (catalogue.used, catalogue.spilled) == (used, spilled)
        assert not any(one.session == session for one in catalogue.entries.values()) or session in catalogue.sessions
    for again in (Catalogue(past=said), Catalogue(past=catalogue.as_changes())):
        assert (again.entries, again.sessions, again.pins) == (catalogue.entries, catalogue.sessions, catalogue.pins)
        assert (again.used, again.spilled) == (catalogue.used, catalogue.spilled)


def test_a_block_that_nobody_uses_any_more_goes_before_those_that_are_worth_more() -> None:
    """Also when the order was made while it was in use."""
    for ends in (Unpin("s/1", "a"), Ended("s/1")):
        catalogue = Catalogue()
        catalogue.apply(Session("s/1", 1, 1, "job"))
        for block, cost_s in (("a", 1.0), ("b", 5.0), ("c", 9.0), ("d", 9.5)):
            catalogue.apply(resident(block, cost_s))
        catalogue.apply(Pin("s/1", "a"))
        first = catalogue.victim()
        assert first is not None and first.id == "b"
        catalogue.record_eviction(first)
        catalogue.apply(Removed("b"))
        catalogue.apply(ends)
        second = catalogue.victim()
        assert second is not None and second.id == "a"


def test_a_block_that_came_back_into_memory_is_not_taken_for_one_on_disk() -> None:
    catalogue = Catalogue()
    catalogue.apply(Entry("a", 64, SPILLED))
    catalogue.apply(Entry("b", 640, SPILLED))
    first = catalogue.cheapest_spilled()
    assert first is not None
    second = catalogue.cheapest_spilled(first.id)
    assert second is not None and {first.id, second.id} == {"a", "b"}
    for block in "ab":
        catalogue.apply(Entry(block, catalogue.entries[block].nbytes, RESIDENT, offset=0 if block == "a" else 64))
    assert catalogue.cheapest_spilled() is None


def test_a_session_that_ends_leaves_behind_what_it_has_written_and_gives_up_what_it_had_not() -> None:
    catalogue = Catalogue()
    catalogue.apply(Session("s/1", 1, 1))
    catalogue.apply(resident("a", session="s/1"))
    for block, session in (("b", "s/1"), ("c", "s/2")):
        catalogue.apply(Entry(block, 1000, RESERVED, 2048, kind="k", session=session))
    catalogue.apply(Pin("s/1", "a"))
    assert catalogue.held("s/1") == {"a", "b"} and catalogue.held("s/2") == {"c"}
    assert [entry.id for entry in catalogue.end_session("s/1")] == ["b"]
    assert set(catalogue.entries) == {"a", "c"} and catalogue.held("s/1") == set() and "s/1" not in catalogue.sessions
    assert catalogue.end_session("s/1") == []


def test_a_change_that_cannot_be_journalled_is_not_made() -> None:
    def full(_: Change) -> None:
        raise Refusal("the journal is full")

    past = [Session("s/1", 1, 1), resident("a"), Entry("b", 640, SPILLED), Pin("s/1", "a")]
    catalogue = Catalogue(full, past)
    before = (dict(catalogue.entries), dict(catalogue.sessions), catalogue.used, catalogue.spilled)
    changes = (resident("c"), Removed("a"), Removed("b"), Session("s/2", 2, 2), Ended("s/1"), Pin("s/1", "b"))
    for change in (*changes, Unpin("s/1", "a")):
        with pytest.raises(Refusal):
            catalogue.apply(change)
    assert before == (catalogue.entries, catalogue.sessions, catalogue.used, catalogue.spilled)
    assert catalogue.pins == {"a": {"s/1"}}


def test_a_block_that_was_used_more_often_stays_longer_than_an_equal_one() -> None:
    catalogue = Catalogue()
    for block in "abc":
        catalogue.apply(resident(block, 1.0))
    for session, block in (("s/1", "a"), ("s/2", "a"), ("s/1", "b")):
        catalogue.apply(Pin(session, block))
        catalogue.apply(Unpin(session, block))
    order = []
    while (victim := catalogue.victim()) is not None:
        order.append(victim.id)
        catalogue.apply(Removed(victim.id))
    assert order == ["c", "b", "a"]


def test_of_equal_blocks_the_one_with_the_lowest_id_goes_first() -> None:
    catalogue = Catalogue()
    for block in "cab":
        catalogue.apply(resident(block))
    assert (victim := catalogue.victim()) is not None and victim.id == "a"


def test_a_block_that_was_valuable_long_ago_goes_before_an_equal_one_that_came_after_evictions() -> None:
    catalogue = Catalogue()
    catalogue.apply(resident("a-old", 1.0))
    for number in range(3):
        catalogue.record_eviction(resident(f"gone-{number}", 0.5))
    catalogue.apply(resident("b-new", 1.0))
    assert catalogue.evictions == 3
    assert catalogue.retention(catalogue.entries["b-new"]) > catalogue.retention(catalogue.entries["a-old"])
    assert (victim := catalogue.victim()) is not None and victim.id == "a-old"
    catalogue.apply(Pin("s/1", "a-old"))
    catalogue.apply(Unpin("s/1", "a-old"))
    victim = catalogue.victim()
    assert victim is not None and victim.id == "b-new", "a use counts from the inflation of now"


def test_an_eviction_of_something_worth_little_does_not_lower_the_inflation() -> None:
    catalogue = Catalogue()
    catalogue.record_eviction(resident("dear", 9.0))
    catalogue.apply(resident("a", 1.0))
    catalogue.record_eviction(resident("cheap", 0.1))
    catalogue.apply(resident("b", 1.0))
    assert catalogue.retention(catalogue.entries["a"]) == catalogue.retention(catalogue.entries["b"])


def test_a_block_keeps_its_uses_while_it_is_on_disk_and_loses_them_when_it_is_removed() -> None:
    catalogue = Catalogue()
    catalogue.apply(resident("a", 1.0))
    once = catalogue.retention(catalogue.entries["a"])
    catalogue.apply(Pin("s/1", "a"))
    catalogue.apply(Unpin("s/1", "a"))
    twice = catalogue.retention(catalogue.entries["a"])
    assert twice[1] == 2 * once[1]
    catalogue.apply(Entry("a", 1000, SPILLED, kind="k", cost_s=1.0))
    catalogue.apply(resident("a", 1.0))
    assert catalogue.retention(catalogue.entries["a"]) == twice
    catalogue.apply(Removed("a"))
    catalogue.apply(resident("a", 1.0))
    assert catalogue.retention(catalogue.entries["a"]) == once


def test_a_block_is_in_use_until_the_last_of_its_sessions_has_let_go() -> None:
    catalogue = Catalogue()
    for session in ("s/1", "s/2"):
        catalogue.apply(Session(session, 1, 1))
    catalogue.apply(resident("a"))
    for session in ("s/1", "s/2", "s/2"):
        catalogue.apply(Pin(session, "a"))
    catalogue.apply(Unpin("s/1", "a"))
    catalogue.apply(Unpin("s/1", "a"))
    assert catalogue.victim() is None and catalogue.held("s/2") == {"a"} and catalogue.held("s/1") == set()
    catalogue.apply(Unpin("s/2", "a"))
    assert (victim := catalogue.victim()) is not None and victim.id == "a"
    assert catalogue.pins == {}


def test_a_session_that_ends_unpins_its_own_blocks_only() -> None:
    catalogue = Catalogue()
    for session in ("s/1", "s/2"):
        catalogue.apply(Session(session, 1, 1))
    for block, session in (("a", "s/1"), ("b", "s/1"), ("b", "s/2"), ("c", "s/2")):
        if block not in catalogue.entries:
            catalogue.apply(resident(block))
        catalogue.apply(Pin(session, block))
    catalogue.apply(Ended("s/1"))
    assert catalogue.pins == {"b": {"s/2"}, "c": {"s/2"}} and set(catalogue.sessions) == {"s/2"}
    assert (victim := catalogue.victim()) is not None and victim.id == "a"


def test_what_is_still_written_is_never_a_victim() -> None:
    catalogue = Catalogue()
    catalogue.apply(Entry("a", 1000, RESERVED, 0, session="s/1"))
    assert catalogue.victim() is None
    catalogue.apply(resident("a"))
    assert (victim := catalogue.victim()) is not None and victim.id == "a"


def test_on_disk_too_the_least_valuable_block_goes_first_and_states_of_trainings_last() -> None:
    catalogue = Catalogue()
    catalogue.apply(Entry("state", 1 << 30, SPILLED, label=snapshot_label("j")))
    for block, cost_s in (("dear", 9.0), ("cheap", 1.0), ("middle", 5.0)):
        catalogue.apply(Entry(block, 1000, SPILLED, cost_s=cost_s))
    assert (first := catalogue.cheapest_spilled("cheap")) is not None and first.id == "middle"
    order = []
    while (entry := catalogue.cheapest_spilled()) is not None:
        order.append(entry.id)
        catalogue.apply(Removed(entry.id))
    assert order == ["cheap", "middle", "dear", "state"]
    catalogue.apply(Entry("last", 10, SPILLED))
    assert catalogue.cheapest_spilled("last") is None, "the only one is spared"
    entry = catalogue.cheapest_spilled()
    assert entry is not None and entry.id == "last", "and is still there"


def test_memory_and_disk_are_counted_in_aligned_bytes_and_an_empty_block_takes_one_unit() -> None:
    catalogue = Catalogue()
    catalogue.apply(Entry("a", 0, RESERVED, 0, session="s/1"))
    assert (catalogue.used, catalogue.spilled) == (64, 0)
    catalogue.apply(resident("a", nbytes=65))
    assert (catalogue.used, catalogue.spilled) == (128, 0)
    catalogue.apply(Entry("a", 65, SPILLED))
    assert (catalogue.used, catalogue.spilled) == (0, 128)
    catalogue.apply(Removed("a"))
    catalogue.apply(Removed("a"))
    assert (catalogue.used, catalogue.spilled) == (0, 0)


def test_the_free_ranges_are_those_of_no_block_in_memory() -> None:
    catalogue = Catalogue()
    catalogue.apply(Entry("a", 0, RESERVED, 64, session="s/1"))
    catalogue.apply(Entry("b", 100, RESIDENT, 256))
    catalogue.apply(Entry("c", 1000, SPILLED, -1))
    assert catalogue.free_ranges(1024).ranges() == [(0, 64), (128, 128), (384, 640)]


def test_usage_counts_a_block_once_and_shares_it_among_jobs_not_sessions() -> None:
    catalogue = Catalogue()
    for session, job in (("a/1", "a"), ("a/2", "a"), ("b/1", "b"), ("none", "")):
        catalogue.apply(Session(session, 1, 1, job))
    catalogue.apply(resident("x", nbytes=1000, label="one"))
    catalogue.apply(resident("y", nbytes=600, label="one"))
    catalogue.apply(resident("z", nbytes=64, label="two"))
    catalogue.apply(Entry("disk", 500, SPILLED, label="one"))
    catalogue.apply(Entry("new", 300, RESERVED, 0, session="a/1", label="three"))
    for session, block in (("a/1", "x"), ("a/2", "x"), ("b/1", "x"), ("b/1", "y"), ("unknown", "z")):
        catalogue.apply(Pin(session, block))
    usage = catalogue.usage(10_000, 2048)
    assert (usage.quota, usage.warm, usage.spilled, usage.evictions) == (10_000, 2048, 512, 0)
    assert usage.used == aligned(1000) + aligned(600) + 64 + aligned(300)
    assert (usage.pinned, usage.blocks) == (1664, 4), "a reservation is no block"
    assert usage.by_label == {"one": 1600, "two": 64} and usage.by_job == {"a": 500, "b": 1100}


def test_a_block_is_reported_without_its_header_and_with_its_users() -> None:
    catalogue = Catalogue()
    catalogue.apply(Entry("a", 1000, RESIDENT, 0, 40, "table", "label", 2.5, "digest"))
    for session in ("s/1", "s/2"):
        catalogue.apply(Pin(session, "a"))
    assert catalogue.info(catalogue.entries["a"]) == BlockInfo(
        BlockId("a"), "table", 960, "label", "digest", RESIDENT, 2, 2.5
    )
    catalogue.apply(Entry("a", 1000, SPILLED, -1, 40, "table"))
    assert catalogue.info(catalogue.entries["a"]).where == "spilled"
