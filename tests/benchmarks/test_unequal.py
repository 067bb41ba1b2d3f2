"""How the benchmark of unequal workers judges: by rounds, and once the shares have settled."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.reporter import Bench
from benchmarks.unequal import SETTLE, judge


def taken(step_s: float, compute_s: list[float], share: float) -> dict[str, Any]:
    rounds = SETTLE + 3
    unsettled = [99.0] * SETTLE
    return {
        "step_s": unsettled + [step_s] * 3, "compute_s": [compute_s] * rounds, "shares": [[share, 1 - share]] * rounds,
        "cpu_s": [[0.0, 0.0]] * rounds,
    }  # fmt: skip


def test_two_to_one_workers_are_judged_by_the_fast_one_beside_a_stranger() -> None:
    bench = Bench("unequal", quick=True)
    beside, alone = taken(3.0, [0.0], 1.0), taken(2.7, [0.0], 1.0)
    judge(bench, beside, alone, taken(2.0, [1.95, 2.05], 0.67), taken(3.0, [1.0, 2.0], 0.5))
    speed, idle, apart = bench.rows
    assert speed.value == pytest.approx(100.0) and speed.peer_value == pytest.approx(100 / 1.5) and speed.met
    assert idle.value == pytest.approx(90.0) and idle.target is None
    assert apart.value == pytest.approx(5.0) and apart.peer_value == pytest.approx(100 / 1.5) and apart.met
