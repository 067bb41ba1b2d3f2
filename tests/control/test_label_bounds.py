"""Labels of metrics that strangers can make up stay few, and those that an administrator makes are all told."""

from __future__ import annotations

import pytest

from fairlead.control.observability import live_metrics
from fairlead.control.observability.metric_families import MetricFamily


@pytest.mark.parametrize(
    ("label", "most"), [("reason", live_metrics.MAX_LABEL_VALUES), ("route", 4 * live_metrics.MAX_LABEL_VALUES)]
)
def test_what_nobody_foresaw_is_told_as_other_once_there_is_too_much_of_it(
    label: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_metrics, "_seen", {})
    family = MetricFamily("made_up", "counter", "For this test.", (label, "tenant", "node"))
    told = [live_metrics.bounded_labels(family, (f"r{n}", f"t{n}", f"n{n}")) for n in range(most + 5)]
    assert told[:most] == [(f"r{n}", f"t{n}", f"n{n}") for n in range(most)]
    assert told[most:] == [("other", f"t{n}", f"n{n}") for n in range(most, most + 5)]
    assert live_metrics.bounded_labels(family, ("r0", "t", "n")) == ("r0", "t", "n"), "what is known already stays"
    another = MetricFamily("another", "counter", "For this test.", (label,))
    assert live_metrics.bounded_labels(another, ("new",)) == ("new",)
