"""What a stage's result can depend on is seen in its source, so that no earlier result stands for another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.pipelines.closure import Sources

STAGE = """
from fairlead.pipelines import stage
import functools
@stage(cpu=1)
def fit(x):
    return helper(x) * T * C["lr"]
"""


def digest(folder: Path, text: str) -> str | None:
    (folder / "flow.py").write_text(text)
    return Sources(folder).digest("flow.py", "fit")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('C = {}\nC["lr"] = 1\nC["seed"] = 2', 'C = {}\nC["lr"] = 3\nC["seed"] = 2'),
        ("T = 1\nT = T * 2", "T = 5\nT = T * 2"),
        ("T = 1\nT = T * 2\nC = T", "T = 1\nC = T\nT = T * 2"),
        ("def helper(x): return x", "@functools.cache\ndef helper(x): return x"),
        ("def helper(x): return x\nhelper = double(helper)", "def helper(x): return x\nhelper = triple(helper)"),
        ("def twice(f): return f\n@twice\ndef helper(x): pass", "def twice(f): return 2\n@twice\ndef helper(x): pass"),
        ("D = 1\nC = {}\nC.update(lr=D)", "D = 2\nC = {}\nC.update(lr=D)"),
    ],
)
def test_code_that_changes_what_a_stage_gives_makes_it_run_again(before: str, after: str, tmp_path: Path) -> None:
    assert digest(tmp_path, f"{STAGE}\n{before}\n") != digest(tmp_path, f"{STAGE}\n{after}\n")


def test_another_decorator_of_the_stage_counts_and_what_it_runs_on_does_not(tmp_path: Path) -> None:
    usual = digest(tmp_path, STAGE)
    assert digest(tmp_path, STAGE.replace("cpu=1", "cpu=2")) == usual
    assert digest(tmp_path, STAGE.replace("def fit", "@functools.cache\ndef fit")) != usual
    own = "def stage(cpu): return lambda f: f\n" + STAGE
    assert digest(tmp_path, own) != digest(tmp_path, own.replace("cpu=1", "cpu=2"))


def test_what_a_stage_does_not_name_does_not_count(tmp_path: Path) -> None:
    other = "\n@stage(cpu=1)\ndef other(): return 1\nU = 3\n"
    assert digest(tmp_path, STAGE + other) == digest(tmp_path, STAGE + other.replace("return 1", "return 2"))
    assert digest(tmp_path, STAGE + other) == digest(tmp_path, STAGE + other.replace("U = 3", "U = 4"))
    assert digest(tmp_path, STAGE + other) == digest(tmp_path, STAGE.replace("return", "# so\n    return"))
