"""Pipelines on the command line: what a person types, reads and may get wrong."""

from __future__ import annotations

import os

import pytest

from tests import nursery
from tests.chaos.crashable import Crashable
from tests.nursery import Done
from tests.pipelines.conftest import PROGRAMS, ended
from tests.waiting import until

pytestmark = pytest.mark.timeout(400)


def fairlead(platform: Crashable, *words: str) -> Done:
    others = {name: value for name, value in os.environ.items() if name not in ("FAIRLEAD_URL", "FAIRLEAD_TOKEN")}
    environment = {**others, "FAIRLEAD_HOME": str(platform.home), "COLUMNS": "80"}
    return nursery.fairlead("pipeline", *words, environment=environment, cwd=PROGRAMS)


def test_a_pipeline_is_run_watched_and_shown_within_eighty_columns(platform: Crashable) -> None:
    done = fairlead(platform, "run", "flow.py:chain", "--tenant", "typist", "-p", "rows=37", "--watch")
    assert done.code == 0, done.out + done.err
    assert "load: succeeded" in done.out and "succeeded after" in done.out
    again = fairlead(platform, "run", "flow.py:chain", "--tenant", "typist", "-p", "rows=37", "--watch")
    assert "{x: ndarray 37 x 4 float64, y: ndarray 37 int64}" in " ".join(again.out.split())
    assert "(from" in again.out and "chain-" in again.out, "whose result it is"
    shown = fairlead(platform, "show", "chain")
    assert shown.code == 0 and max(map(len, shown.out.splitlines())) <= 80
    assert "3 cached" in fairlead(platform, "list").out


def test_a_pipeline_that_fails_says_which_stage_and_why(platform: Crashable) -> None:
    done = fairlead(platform, "run", "flow.py:half_broken", "--tenant", "typist", "--watch")
    assert done.code == 100
    said = " ".join(done.out.split())
    assert "broken failed (and 1 more): w0: ValueError: no good (flow.py:" in said
    assert "skipped: upstream broken failed" in said


def test_a_pipeline_is_cancelled_and_its_stages_that_never_ran_took_no_time(platform: Crashable) -> None:
    made = fairlead(platform, "run", "flow.py:slow", "--tenant", "typist", "--json").data
    until(lambda: platform.client.pipeline(made["id"]).stages["one"].state == "running", 120, "it runs")
    assert "is being cancelled" in fairlead(platform, "cancel", made["id"]).out
    done = ended(platform, made["id"])
    assert done.stages["one"].started_s is not None and done.stages["two"].started_s is None
    refused = fairlead(platform, "cancel", made["id"])
    assert (refused.code, "is cancelled already" in refused.err) == (4, True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["flow.py"], 2, "'flow.py' is not a pipeline"),
        (["flow.py:nothing"], 2, "flow.py: nothing is not there"),
        (["flow.py:load"], 2, "load is a Stage"),
        (["none.py:flow"], 2, "none.py: there is no such file"),
        (["none.yaml"], 3, "none.yaml: there is no such file"),
        (["flow.py:chain", "-p", "rowz=3"], 2, "pipeline chain: rowz: unknown argument"),
        (["flow.py:chain", "-p", "rows=many"], 2, "pipeline chain: rows: 'many' is not of the type int"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_a_fix(
    platform: Crashable, words: list[str], code: int, said: str
) -> None:
    done = fairlead(platform, "run", *words, "--tenant", "typist")
    assert done.code == code and said in done.err and "\n  fix: " in done.err, done.err
    assert len(done.err.strip().splitlines()) == 2
