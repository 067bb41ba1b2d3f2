"""Jain's index of fairness is the formula of REQUIREMENTS.md."""

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
