"""What the planner says that a worker needs is what it needs: no more than 15 % off the measured peak."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.training.weigh import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_predicted_memory_is_within_15_percent_of_the_measured_peak(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.weigh", name], capture_output=True, text=True, check=True, timeout=600
    )
    found = json.loads(done.stdout.splitlines()[-1])
    for plan, bytes_of in found.items():
        assert bytes_of["predicted"] == pytest.approx(bytes_of["measured"], rel=0.15), plan
    if name != "wide":  # which is parameters only
        assert found["single·recompute"]["measured"] < found["single"]["measured"]
