"""How the planning benchmark judges: intervals, regret beyond doubt, and the settings that it looks at."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import regret, turns
from benchmarks.planning import judge, link_bound
from benchmarks.reporter import Bench
from benchmarks.settings import MODELS, PER_MODEL, Setting, chosen, setting
from fairlead.home import Home
from fairlead.planning.plan_choice import MARGIN, choose_plan
from tests.planning import made

ROOT = Path(__file__).parents[2]


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
    slow_link = one("a", row("a", [1.0] * 7, 1.1), row("ddp", [2.0] * 7, 2.0), row("single", [1.8] * 7, 1.8))
    other = one("ddp", row("a", [1.0] * 7, 1.0), row("ddp", [1.5] * 7, 1.5))
    alone = one("single", row("single", [1.0] * 7, 1.0))
    found = {"cnn/2/200mbit/equal": slow_link, "cnn/2/loopback/equal": other, "cnn/1/loopback/equal": alone}
    judge(bench, found)
    figures = {each.name: each.value for each in bench.rows}
    assert figures["choice within 10 % of the best"] == pytest.approx(200 / 3)
    assert figures["within 10 %, 2 settings of 2 and more workers"] == 50.0  # one worker leaves no choice
    assert figures["worst choice, beyond the interval"] == pytest.approx(50.0)
    assert figures["faster than DDP, median of 1 slow links"] == 2.0
    assert figures["median error of 6 predicted steps"] == pytest.approx(0.0, abs=1e-6)


def test_what_the_platform_would_run_is_judged_and_the_planners_first_beside_it() -> None:
    bench = Bench("planning", quick=False)
    found = one("dp2", row("pp2", [1.0] * 7, 1.0), row("dp2", [1.3] * 7, 1.05)) | {"first": "pp2"}
    judge(bench, {"cnn/2/loopback/equal": found})
    figures = {each.name: each.value for each in bench.rows}
    assert figures["choice within 10 % of the best"] == 0.0
    assert figures["the planner's first, without a margin for replicas"] == 100.0


def test_replicas_that_the_platform_would_keep_are_run_and_judged() -> None:
    model, ground = made.model(), made.hardware(2, link=made.SLOW)
    assert turns.platforms(model, ground).plan.id in {each.plan.id for each in turns.worth_running(model, ground)}
    assert turns.platforms(model, ground).plan == choose_plan(model, ground, margin=MARGIN).plan


def test_a_link_is_slow_by_what_was_measured_not_by_what_was_predicted() -> None:
    where = setting("cnn/2/200mbit/2:1")
    fast, slow = row("ddp", [1.0] * 7, 9.0), row("ddp", [9.0] * 7, 1.0)
    single = row("single", [1.0] * 7, 1.0)  # of which the slower worker's half takes as long
    assert not link_bound(where, one("a", fast, single)) and link_bound(where, one("a", slow, single))
    assert not link_bound(setting("cnn/2/loopback/2:1"), one("a", slow, single))


def test_predictions_are_made_again_for_files_that_do_not_say_what_their_plans_were(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, ground = made.model(), made.hardware(2, link=made.SLOW)
    monkeypatch.setattr(turns, "hardware", lambda *_: ground)
    names = [each.plan.id for each in turns.worth_running(model, ground)]
    old = one(names[0], *(row(name, [1.0] * 7, 1.0) for name in names), row("forgotten", [1.0], 1.0))
    now = turns.predicted_again(setting("cnn/2/200mbit/equal"), old, model, Home(tmp_path))
    assert now is not None and [each["id"] for each in now["candidates"]] == names
    assert all(each["plan"] and each["predicted_s"] != 1.0 for each in now["candidates"])
    unknown = one("x", row("x", [1.0], 1.0))
    assert turns.predicted_again(setting("cnn/2/200mbit/equal"), unknown, model, Home(tmp_path)) is None


def test_make_bench_runs_only_what_writes_results() -> None:
    shown = ["make", "-s", "--eval", "shown: ; @echo $(BENCHES)", "shown"]
    files = subprocess.run(shown, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert "benchmarks/planning.py" in files and "benchmarks/planning_plot.py" not in files
    runnable = [file for file in (ROOT / "benchmarks").glob("*.py") if "__main__" in file.read_text()]
    assert {file.name for file in runnable} - {Path(file).name for file in files} == {"planning_plot.py"}


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
