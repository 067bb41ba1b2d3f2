"""The course of a training: what was done is written down as it was, and found again step by step."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from fairlead.training.run_schedule import MOST_ENTRIES, RunSchedule, schedule_from

SHARES = st.sampled_from([(1.0,), (0.5, 0.5), (0.25, 0.75), (0.1, 0.2, 0.7)])


@given(st.lists(SHARES, min_size=1, max_size=40))
def test_every_step_is_found_in_the_shares_in_which_it_was_taken(steps: list[tuple[float, ...]]) -> None:
    course = RunSchedule()
    for step, shares in enumerate(steps):
        course.record(step, len(shares), "replicas", shares)
    read = schedule_from(json.loads(json.dumps(course.to_plain())))
    assert read == course
    assert [read.shares(step, len(shares), "replicas") for step, shares in enumerate(steps)] == steps
    assert len(course.entries) <= len(steps)


@given(st.lists(SHARES, min_size=2, max_size=20), st.lists(SHARES, min_size=1, max_size=20), st.data())
def test_steps_that_are_taken_again_are_as_they_were_the_last_time(
    first: list[tuple[float, ...]], second: list[tuple[float, ...]], data: st.DataObject
) -> None:
    back = data.draw(st.integers(0, len(first) - 1))
    course, straight = RunSchedule(), RunSchedule()
    for step, shares in enumerate(first):
        course.record(step, len(shares), "p", shares)
    for step, shares in enumerate(second, back):
        course.record(step, len(shares), "p", shares)
    for step, shares in enumerate([*first[:back], *second]):
        straight.record(step, len(shares), "p", shares)
    assert [course.shares(s, len(x), "p") for s, x in enumerate([*first[:back], *second])] == [*first[:back], *second]
    assert course.entries[: len(straight.entries)] == straight.entries


def test_another_number_of_workers_or_another_plan_has_no_shares_to_follow() -> None:
    course = RunSchedule([(0, 2, "replicas", (0.5, 0.5))])
    assert course.shares(3, 2, "replicas") == (0.5, 0.5)
    assert course.shares(3, 3, "replicas") is None
    assert course.shares(3, 2, "ddp") is None


def test_a_course_that_is_too_long_says_so_and_equals_none() -> None:
    course = RunSchedule()
    for step in range(MOST_ENTRIES + 1):
        course.record(step, 1 + step % 2, "p", (1.0,))
    assert not course.complete
    assert course != schedule_from(course.to_plain())
