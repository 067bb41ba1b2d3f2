"""The history of a training: what its time is counted from, and to."""

from __future__ import annotations

import pytest

from fairlead.training.history import History


def test_the_first_step_and_the_last_evaluation_belong_to_the_time() -> None:
    history = History(2)
    history.mark_activity(100.0)
    history.add(103.0, 1.0)  # the first step takes three seconds
    history.add(104.0, 0.5)
    history.mark_activity(106.0)
    assert history.seconds == pytest.approx(6.0)
    again = History(2)
    again.load(history.state())
    again.mark_activity(110.0)  # of another generation
    assert again.seconds == pytest.approx(10.0)


def test_a_snapshot_that_does_not_tell_when_it_began_is_counted_from_its_first_step() -> None:
    history = History(2)
    history.add(103.0, 1.0)
    history.add(104.0, 0.5)
    told = {key: value for key, value in history.state().items() if key != "at_work_s"}
    again = History(2)
    again.load(told)
    assert again.seconds == pytest.approx(1.0) and History(2).seconds == 0.0


@pytest.mark.parametrize(
    ("step_s", "steps", "repeated"), [(0.1, 400, 400), (0.1, 2000, 600), (0.01, 5000, 1000), (0.0005, 20000, 6000)]
)
def test_a_new_rank_0_tells_again_what_a_node_that_hung_may_have_kept_to_itself(
    step_s: float, steps: int, repeated: int
) -> None:
    history = History(10)
    for step in range(steps):
        history.add(1000.0 + step * step_s, 1.0)
    assert len(list(history.rows(history.repeat_from()))) == pytest.approx(repeated, abs=1)
    assert History(10).repeat_from() == 0
