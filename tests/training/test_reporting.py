"""Progress is told now and then, and step by step where a gang died before: it may do so again at the same step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fairlead.training import reporting
from fairlead.training.history import History
from fairlead.training.reporting import CAREFUL_S, INTERVAL_S, Reporter


@pytest.mark.parametrize("careful_from", [None, 5])
def test_steps_behind_a_death_are_told_at_once_for_a_while(
    careful_from: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, sent = [1_000.0], list[int]()
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now_s[0])
    session: Any = SimpleNamespace(history=History(10), step=3)
    group: Any = SimpleNamespace(careful_from=careful_from, rank=0, size=1)
    reporter = Reporter(SimpleNamespace(), session, group)  # type: ignore[arg-type]

    def send(at_s: float) -> None:
        sent.append(session.step)
        reporter._last_s = at_s

    monkeypatch.setattr(reporter, "_send", send)

    def step(number: int, at_s: float) -> bool:
        session.step, now_s[0] = number, at_s
        before = len(sent)
        reporter.report_if_due()
        return len(sent) > before

    assert step(3, 1_000.0), "the first one is told at once"
    tiny = INTERVAL_S / 100
    assert not step(4, 1_000.0 + tiny), "nothing has died here"
    told = [step(5 + at, 1_000.0 + (2 + at) * tiny) for at in range(3)]
    assert told == [careful_from is not None] * 3
    late_s = 1_000.0 + 2 * tiny + CAREFUL_S
    assert step(20, max(late_s, 1_000.0 + 10 * INTERVAL_S))
    assert not step(21, max(late_s, 1_000.0 + 10 * INTERVAL_S) + tiny), "it did not happen again"
