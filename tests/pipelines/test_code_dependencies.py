"""What a stage's result can depend on is seen in its source, so that no earlier result stands for another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.pipelines.code_dependencies import Sources

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
        ('C = {}\ndef fill():\n    C["lr"] = 1\nfill()', 'C = {}\ndef fill():\n    C["lr"] = 2\nfill()'),
        ('C = {}\ndef fill():\n    C["lr"] = 1\n_ = fill()', 'C = {}\ndef fill():\n    C["lr"] = 2\n_ = fill()'),
        ("C = {}\n_ = C.setdefault('lr', 1)", "C = {}\n_ = C.setdefault('lr', 2)"),
        (
            "C = {}\ndef keep(f):\n    C['lr'] = f\n@keep\ndef one(x): return 1",
            "C = {}\ndef keep(f):\n    C['lr'] = f\n@keep\ndef one(x): return 2",
        ),
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


@pytest.mark.parametrize("imported", ["from pkg.sub import helper", "import pkg.sub", "from pkg import sub"])
@pytest.mark.parametrize("inside", ["from . import T", "from .. import T", "from pkg import T"])
def test_the_packages_on_the_way_to_an_import_count(imported: str, inside: str, tmp_path: Path) -> None:
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    deep = inside == "from .. import T"
    (tmp_path / "pkg" / ("sub/__init__.py" if deep else "sub.py")).write_text(f"{inside}\ndef helper(x): return T")
    if not deep:
        (tmp_path / "pkg" / "sub").rmdir()
    found = []
    for value in (1, 2):
        (tmp_path / "pkg" / "__init__.py").write_text(f"T = {value}")
        found.append(digest(tmp_path, f"{imported}\n{STAGE}"))
    assert found[0] != found[1]


def test_a_file_that_names_its_stages_at_its_top_does_not_tie_them_together(tmp_path: Path) -> None:
    text = (
        STAGE
        + """
def load(): return 1
loaded = stage(load)
@stage
def other(): return 1
later = other.named("later")
@pipeline
def main(): fit(other())
run(main)
"""
    )
    assert digest(tmp_path, text) == digest(tmp_path, text.replace("return 1", "return 2"))
