"""When a worker that trains counts as hung."""

from __future__ import annotations

from fairlead.recovery import silence


def test_silence_is_thirty_seconds_or_ten_steps_or_what_was_asked() -> None:
    assert silence.limit_s(0.1, None) == 30.0
    assert silence.limit_s(60.0, None) == 600.0
    assert silence.limit_s(60.0, 2.0) == 2.0


def test_a_slower_step_is_believed_at_once_and_a_faster_one_slowly() -> None:
    assert silence.usual_step_s(1.0, 9.0) == 9.0
    assert silence.usual_step_s(9.0, 1.0) == 8.2
    assert silence.usual_step_s(2.0, 2.0) == 2.0
