"""What can be done now of what is wanted: only on free seats, whole or with as many as may run, and nobody is lost."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster import DEVICE
from fairlead.scheduling.feasible_changes import FeasibleChanges, Limits, feasible_changes
from fairlead.scheduling.state import JobState

from .clusters import job, several

Wants = dict[str, tuple[str, ...]]
NODES = tuple("abcdef")


def done(jobs: list[JobState], wanted: Wants, limits: Limits | None = None) -> FeasibleChanges:
    held = Counter(seat for one in jobs for seat in one.seats)
    free = {name: {DEVICE: float(1 - held[name])} for name in NODES}
    return feasible_changes({one.id: one for one in jobs}, wanted, [one.id for one in jobs], free, limits)


def test_a_rigid_gang_waits_for_all_its_seats_and_an_elastic_one_begins_with_what_is_free() -> None:
    busy = job("busy", seats=("b",))
    rigid = done([job("rigid", workers=(2, 2)), busy], {"rigid": ("a", "b")})
    assert rigid.awaits == {"rigid": ("b",)} and rigid.changes == {"busy": ()}
    elastic = done([job("elastic", workers=(1, 2)), busy], {"elastic": ("a", "b")})
    assert elastic.changes == {"elastic": ("a",), "busy": ()} and elastic.awaits == {"elastic": ("b",)}


def test_nobody_stops_for_seats_that_nobody_is_to_have() -> None:
    assert done([job("idle", seats=("a",))], {}) == FeasibleChanges()


def test_no_more_gangs_stop_than_seats_are_awaited_the_least_worth_first() -> None:
    free = {"a": {DEVICE: 0.0}}
    jobs = {one.id: one for one in (job("new"), job("dear", seats=("a",)), job("cheap", seats=("a",)))}
    assert feasible_changes(jobs, {"new": ("a",)}, ["new", "dear", "cheap"], free).changes == {"cheap": ()}


def test_a_gang_that_moves_holds_its_seats_until_the_new_ones_are_free() -> None:
    moving, other = job("moving", seats=("a",)), job("other", workers=(1, 2), seats=("b", "c"))
    assert done([moving, other], {"moving": ("b",), "other": ("c",)}).changes == {"other": ("c",)}
    assert done([moving], {"moving": ("b",)}).changes == {"moving": ("b",)}


def test_an_elastic_gang_makes_way_for_who_awaits_its_seats_before_it_has_others() -> None:
    wide = job("wide", workers=(1, 3), seats=("a", "b"))
    found = done([job("new"), wide, job("c", seats=("c",))], {"new": ("b",), "wide": ("a", "c"), "c": ()})
    assert found.changes == {"wide": ("a",), "c": ()} and found.awaits == {"new": ("b",), "wide": ("c",)}


def test_of_two_gangs_that_wait_for_each_others_seats_the_one_worth_less_stops() -> None:
    one, other = job("one", seats=("a",)), job("other", seats=("b",))
    assert done([one, other], {"one": ("b",), "other": ("a",)}).changes == {"other": ()}


def test_a_gang_that_waits_for_another_device_of_its_own_node_is_in_nobodys_way() -> None:
    grows, fixed = job("grows", workers=(1, 2), seats=("a",), elastic=False), job("fixed", seats=("a",))
    jobs = {one.id: one for one in (grows, fixed)}
    assert feasible_changes(jobs, {"grows": ("a", "a")}, ["grows"], {"a": {DEVICE: 0.0}}).changes == {}


def test_a_command_neither_moves_nor_stops_to_let_others_move() -> None:
    one, other = (job(name, seats=(seat,), starts_over=True) for name, seat in (("one", "a"), ("other", "b")))
    assert done([one, other], {"one": ("b",), "other": ("a",)}).changes == {}


def test_a_limit_holds_while_a_gang_that_counts_for_it_is_still_leaving() -> None:
    limits = Limits({("t", ""): 0}, lambda job, node: [("t", "")])
    found = done([job("new"), job("old", seats=("a",))], {"new": ("b",)}, limits)
    assert found.changes == {"old": ()} and found.awaits == {"new": ("b",)}


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[JobState], Wants]:
    """Gangs on seats of their own, and others for each of them: no seat is anybody's twice."""
    now, then = draw(st.permutations(NODES)), draw(st.permutations(NODES))
    jobs, wanted = [], {}
    for at in range(3):
        has, wants = now[2 * at : 2 * at + draw(st.integers(0, 2))], then[2 * at : 2 * at + draw(st.integers(0, 2))]
        low, elastic = draw(st.integers(1, 2)), draw(st.booleans())
        over = draw(st.booleans()) and not elastic
        jobs.append(job(f"j{at}", workers=(low, 3), seats=tuple(has), elastic=elastic, starts_over=over))
        if wants:
            wanted[f"j{at}"] = tuple(wants)
    return jobs, wanted


@several
@given(plans())
def test_nothing_is_given_before_it_is_free_and_all_that_is_wanted_sits_starts_or_is_awaited(
    plan: tuple[list[JobState], Wants],
) -> None:
    jobs, wanted = plan
    found = done(jobs, wanted)
    both = Counter(seat for one in jobs for seat in Counter(one.seats) | Counter(found.changes.get(one.id, ())))
    assert all(count <= 1 for count in both.values()), "old and new seats are held until the gang has left the old ones"
    for one in jobs:
        target, change = wanted.get(one.id, ()), found.changes.get(one.id)
        assert change is None or set(change) <= set(target)
        begun = set(one.seats) | set(change or ())
        waits = set(found.awaits.get(one.id, ()))
        free = {seat for seat in target if all(seat not in other.seats for other in jobs)}
        assert set(target) <= begun | waits | free
        if change and not one.elastic:
            assert len(change) == len(target)
