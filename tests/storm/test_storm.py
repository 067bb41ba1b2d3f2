"""The real controller comes through every storm: 300 seeds here, thousands of fresh ones in make explore."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import SystemRandom

import pytest

from tests.storm.kept import KEPT, KEPT_WITH_MORE, PENDING, SEEN
from tests.storm.reverted import reverted
from tests.storm.run import run_seed
from tests.storm.simulated_store import Database
from tests.storm.world import Report

EXPLORE = bool(os.environ.get("FAIRLEAD_EXPLORE"))
SEEDS = 10 * int(os.environ.get("FAIRLEAD_EXAMPLES", "1000")) if EXPLORE else 300
EACH = 50 if EXPLORE else 10  # in one test, so that the processes that test side by side share them


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    return Database(tmp_path_factory.mktemp("storm"))


def told(report: Report) -> str:
    """What was wrong, and the line that plays it again."""
    wrong = [f"{one.at_s:9.3f} {one.invariant}: {one.text}" for one in report.wrong]
    return "\n".join([f"python -m tests.storm {report.seed} --trace", *wrong])


def came_through(seed: int, database: Database, *, plain: bool = False) -> None:
    report = run_seed(seed, database, plain=plain)
    assert report.jobs >= 5 and report.faults >= 10 and report.virtual_s >= 120
    assert not [one for one in report.wrong if one.invariant not in PENDING], told(report)


@pytest.mark.parametrize("seed", [*KEPT, *KEPT_WITH_MORE])
def test_seeds_that_showed_a_fault_once_do_not_show_it_again(seed: int, database: Database) -> None:
    came_through(seed, database, plain=seed in KEPT)


@pytest.mark.parametrize("part", range(SEEDS // EACH))
def test_a_storm_breaks_no_promise(part: int, database: Database) -> None:
    first = SystemRandom().randrange(10**9) if EXPLORE else part * EACH
    for seed in range(first, first + EACH):
        came_through(seed, database)


def test_a_seed_replays_exactly_also_in_another_process(database: Database) -> None:
    seed = 3
    once, again = run_seed(seed, database), run_seed(seed, database)
    assert once.digest == again.digest
    command = [sys.executable, "-m", "tests.storm", str(seed)]
    shown = subprocess.run(
        command, env=os.environ | {"PYTHONHASHSEED": "77"}, cwd=Path(__file__).parents[2], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert once.digest[:16] in shown.stdout, shown.stdout + shown.stderr


@pytest.mark.parametrize(("fault", "seed", "invariant", "plain"), SEEN)
def test_the_storm_sees_what_was_mended(fault: int, seed: int, invariant: str, plain: bool, database: Database) -> None:
    with reverted(fault):
        report = run_seed(seed, database, plain=plain)
    assert invariant in {one.invariant for one in report.wrong}
