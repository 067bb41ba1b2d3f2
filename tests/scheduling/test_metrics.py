"""The figures every run reports are the formulas of REQUIREMENTS.md."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.scheduling import metrics

from .clusters import several

amounts = st.lists(st.floats(0, 1e300, allow_subnormal=False), min_size=1, max_size=20)


@several
@given(amounts)
def test_the_fairness_index_lies_between_one_over_n_and_one(values: list[float]) -> None:
    assert 1 / len(values) - 1e-9 <= metrics.jain(values) <= 1 + 1e-9


@several
@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=20), st.floats(0.001, 1e6))
def test_the_fairness_index_does_not_depend_on_the_unit(values: list[float], unit: float) -> None:
    assert metrics.jain(values) == pytest.approx(metrics.jain([value * unit for value in values]))


@pytest.mark.parametrize(
    ("values", "index"), [([1, 1, 1], 1.0), ([1, 0, 0, 0], 0.25), ([], 1.0), ([0, 0], 1.0), ([4, 2], 0.9)]
)
def test_the_fairness_index_of_known_cases(values: list[float], index: float) -> None:
    assert metrics.jain(values) == pytest.approx(index)


def test_shares_by_weight_are_perfectly_fair() -> None:
    assert metrics.weighted_jain({"a": 30, "b": 20, "c": 10}, {"a": 3, "b": 2, "c": 1}) == pytest.approx(1.0)
    assert metrics.weighted_jain({"a": 30, "x": 1}, {"a": 3}) == 1.0


def test_times_rates_and_ratios() -> None:
    assert metrics.training_time(10.0, 25.0) == 15.0
    assert metrics.throughput(300, 15.0) == 20.0 and metrics.throughput(300, 0.0) == 0.0
    assert metrics.utilisation([1.0, 3.0], 4.0) == 0.5 and metrics.utilisation([], 4.0) == 0.0
    assert metrics.utilisation_over_time(30.0, 4, 10.0) == 0.75
    assert metrics.scalability(96.0, 100.0) == 0.96 and metrics.scalability(1.0, 0.0) == 0.0
    assert metrics.recovery_time(5.0, 5.5) == 0.5


def test_sla_satisfaction_counts_promises_only() -> None:
    assert metrics.sla_satisfaction(11, 12) == pytest.approx(11 / 12) and metrics.sla_satisfaction(0, 0) == 1.0
    assert metrics.sla_kept(None, 5.0, 9.0) is None
    assert metrics.sla_kept(6.0, None, 5.0) is None
    assert metrics.sla_kept(6.0, None, 7.0) is False
    assert metrics.sla_kept(6.0, 6.0, 7.0) is True
