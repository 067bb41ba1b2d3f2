"""A job's data sets are found in its text, without running it, so that it can be placed near them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.sdk.mentioned_datasets import mentioned_datasets
from fairlead.sdk.requests import prepare

ONE = 'import fairlead\ndef training():\n    return fairlead.Training(model=Net, data="bank", eval_data="bank-test")\n'


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (ONE, ["bank", "bank-test"]),
        ('from fairlead.data import dataset as d\nd("bank", version="3f2a9c")', ["bank@3f2a9c"]),
        ('import fairlead.data\nTraining(data=fairlead.data.dataset("bank", target="y"))', ["bank"]),
        ('def dataset(name): ...\ndataset("coco")', []),
        ('Training(data=(x, y))\nother(data="bank")', []),
        ('Training(data="Not A Name")', []),
        ("def (", []),
    ],
)
def test_names_are_found_where_a_training_says_them(text: str, names: list[str]) -> None:
    assert mentioned_datasets(text) == names


def test_a_spec_gets_the_data_sets_of_its_program_unless_it_names_some(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ONE)
    assert prepare("train.py:training", tmp_path, {}).spec.data == ["bank", "bank-test"]
    assert prepare("train.py:training", tmp_path, {"data": ["other"]}).spec.data == ["other"]
