"""Steps measured under a plan in real processes: what planning is checked against."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.planning.plan import SINGLE, Plan
from fairlead.training.plan_measurement import Question, measure
from tests.training.programs import SMALL

TWO = Plan(data=2, sync="allreduce")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(SMALL)
    return str(tmp_path)


def asked(folder: str, plan: Plan, **params: Any) -> Question:
    return Question("train.py:training", plan, steps=4, params=params, folder=folder)


@pytest.mark.parametrize("plan", [SINGLE, TWO, Plan(data=2, sync="allreduce", sharded=True)], ids=lambda plan: plan.id)
def test_every_rank_tells_its_median_step(folder: str, plan: Plan) -> None:
    measured = measure(asked(folder, plan, slow=0.03))
    assert measured.error == "" and len(measured.step_s) == len(measured.peak_bytes) == plan.workers_used
    assert min(measured.step_s) >= 0.03 and min(measured.peak_bytes) > 1 << 20
    assert not (Path(folder) / "output").exists()


def test_an_error_is_told_in_one_line_and_nobody_stays_behind(folder: str) -> None:
    path = Path(folder) / "train.py"
    path.write_text(
        SMALL.replace("        return x\n", "        if len(x) == 6: raise ValueError('no')\n        return x\n", 1)
    )
    measured = measure(asked(folder, TWO))
    assert "ValueError: no (train.py:" in measured.error and measured.step_s == ()


def test_who_waits_for_one_that_failed_is_ended(folder: str) -> None:
    (Path(folder) / "train.py").write_text(
        "import os, time\n"
        "def training():\n"
        "    try:\n        os.mkdir('taken')\n"
        "    except FileExistsError:\n        time.sleep(600)\n"
        "    raise KeyError('gone')\n"
    )
    assert "KeyError: 'gone'" in measure(asked(folder, TWO)).error


def test_it_answers_as_a_program_of_its_own(folder: str) -> None:
    question = {"run": "train.py:training", "plan": TWO.to_plain(), "steps": 3, "folder": folder}
    done = subprocess.run(
        [sys.executable, "-m", "fairlead.training.plan_measurement"], input=json.dumps(question), text=True, check=True,
        capture_output=True, timeout=170,
    )  # fmt: skip
    answer = json.loads(done.stdout.splitlines()[-1])
    assert len(answer["step_s"]) == 2 and answer["error"] == ""
