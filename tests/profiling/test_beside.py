"""A worker looks at its model with the training's own batch, whatever number of samples it takes to look with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fairlead
from fairlead.local_wire import PlacedSpec
from fairlead.profiling.profiling_process import SAMPLES, TrainingPace, _profiled_message, _sample_rows
from fairlead.training.session import Session

FAST, SLOW = TrainingPace(step_s=0.001, samples=256.0), TrainingPace(step_s=30.0, samples=256.0)


class Listed(TensorDataset):
    """Makes its samples one by one."""


def a_session(batch: int, samples: int = 1000, *, one_by_one: bool = False) -> Session:
    x, y = torch.randn(samples, 6), torch.zeros(samples, dtype=torch.long)
    data = torch.utils.data.Subset(Listed(x, y), range(samples)) if one_by_one else (x, y)
    return Session(fairlead.Training(
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)), data=data, batch_size=batch,
        loss=nn.CrossEntropyLoss(), epochs=1,
    ), 0)  # fmt: skip


def a_spec(folder: Path) -> PlacedSpec:
    return PlacedSpec(
        job="job-1", tenant="tests", uid=None, run="t.py:f", command=None, params={}, env={}, venv=None, bundle=None,
        folder=str(folder), memory_folder=str(folder), cpu=1.0,
    )  # fmt: skip


@pytest.mark.parametrize("pace", [FAST, SLOW])
@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("batch", [1, SAMPLES - 1, SAMPLES, SAMPLES + 1, 256, 1000])
def test_a_batch_of_any_size_can_be_looked_at(tmp_path: Path, batch: int, one_by_one: bool, pace: TrainingPace) -> None:
    session = a_session(batch, one_by_one=one_by_one)
    said = _profiled_message(session, _sample_rows(session), pace, a_spec(tmp_path))
    assert said.why_not == ""
    assert (said.profile["batch_size"], said.profile["samples"]) == (batch, 1000)
    assert said.profile["calibration"]["sample_s"] > 0


def test_tensors_are_looked_at_in_a_whole_batch_and_samples_that_are_made_in_a_few() -> None:
    assert [len(_sample_rows(a_session(batch))[-1]) for batch in (8, 256)] == [SAMPLES, 256]
    assert [len(_sample_rows(a_session(batch, one_by_one=True))[-1]) for batch in (8, 256)] == [SAMPLES, SAMPLES]
    assert len(_sample_rows(a_session(4, samples=20))[-1]) == 20
