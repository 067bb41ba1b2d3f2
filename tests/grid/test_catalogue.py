"""The catalogue alone: who goes when room is needed, and that it comes back from its own log as it was."""

from __future__ import annotations

from typing import Any

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
from fairlead.grid.values import aligned, snapshot_label

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
