"""How the planning benchmark judges: intervals, regret beyond doubt, and the settings that it looks at."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import regret
from benchmarks.planning import judge
from benchmarks.reporter import Bench
from benchmarks.settings import MODELS, PER_MODEL, Setting, chosen, setting


def row(name: str, times: list[float], predicted_s: float, exchange: float = 0.0) -> dict[str, Any]:
    return {
        "id": name, "kind": "dp", "step_s": times, "predicted_s": predicted_s, "error": "",
        "parts": {"exchange": exchange},
    }  # fmt: skip


def one(chosen_plan: str, *rows: dict[str, Any]) -> dict[str, Any]:
    return {"chosen": chosen_plan, "rule": "ddp", "candidates": list(rows), "load": [1.0, 1.0]}


def test_an_interval_grows_narrower_with_more_repeats() -> None:
    assert regret.interval([1, 2, 3]) == (1, 3)
    assert regret.interval([1, 2, 3, 4, 5, 6, 7]) == (1, 7)
    low, high = regret.interval(list(range(1, 22)))
    assert 1 < low < 11 < high < 21


def test_regret_counts_only_beyond_doubt_and_by_rounds() -> None:
    fast, slow = [1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0], [1.3, 2.6, 1.2, 1.4, 1.3, 1.3, 1.3]
    found = one("b", row("a", fast, 1.0), row("b", slow, 1.3))
    assert regret.best(found)["id"] == "a"
    assert regret.regret(found, "b") == pytest.approx(0.2) and regret.regret(found, "a") == 0.0
    assert regret.plain_regret(found, "b") == pytest.approx(0.3) and regret.regret(found, "none") is None
    noisy = one("b", row("a", fast, 1.0), row("b", [0.9, 2.6, 1.2, 1.4, 1.3, 1.3, 1.3], 1.3))
    assert regret.regret(noisy, "b") == 0.0


def test_the_figures_are_those_that_were_promised() -> None:
    bench = Bench("planning", quick=False)
    slow_link = one("a", row("a", [1.0] * 7, 1.1), row("ddp", [2.0] * 7, 2.0, exchange=1.5))
    judge(bench, {"x": slow_link, "y": one("ddp", row("a", [1.0] * 7, 1.0), row("ddp", [1.5] * 7, 1.5))})
    figures = {each.name: each.value for each in bench.rows}
    assert figures["choice within 10 % of the best"] == 50.0
    assert figures["worst choice, beyond the interval"] == pytest.approx(50.0)
    assert figures["faster than DDP, median of 1 slow links"] == 2.0
    assert figures["median error of 4 predicted steps"] == pytest.approx(0.0, abs=1e-6)


def test_the_grid_is_as_large_as_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAIRLEAD_SETTINGS", raising=False)
    every = chosen(quick=False)
    assert len(every) == len(MODELS) * len(PER_MODEL) >= 24
    assert {each.workers for each in every} == {1, 2, 4} and len({each.link for each in every}) == 3
    assert all(max(each.cores) <= 0.4 for each in every)
    assert setting("cnn/4/200mbit/2:1").cores == [0.4, 0.2, 0.4, 0.2]
    monkeypatch.setenv("FAIRLEAD_SETTINGS", "cnn/4/loopback/2:1,wide")
    some = chosen(quick=False)
    assert some[0] == Setting("cnn", 4, "loopback", "2:1") and {each.model for each in some[1:]} == {"wide"}
