"""A function that is not in its file is refused before anything is sent, and nothing is run to find that out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fairlead.errors import InvalidSpec
from fairlead.sdk.requests import prepare

BOUND = {
    "def": "def training(lr=1): ...",
    "async def": "async def training(): ...",
    "class": "class training: ...",
    "decorated": "import functools\n@functools.cache\ndef training(): ...",
    "assign": "training = make = lambda: None",
    "several": "(other, *training) = 1, 2, 3",
    "typed": "training: object = print",
    "import": "import training",
    "from": "from models import build as training",
    "dotted": "import training.sub",
    "within if": "import sys\nif sys.platform:\n    def training(): ...\nelse:\n    training = None",
    "within try": "try:\n    from fast import training\nexcept ImportError:\n    training = None",
    "within with": "with open('x') as training:\n    pass",
    "walrus": "if (training := 1): pass",
    "match": "match 1:\n    case training: pass",
}
UNKNOWN = {
    "star": "from models import *",
    "globals": "globals()['train' + 'ing'] = print",
    "exec": "exec('training = print')",
    "sys.modules": "import sys\nsetattr(sys.modules[__name__], 'training', print)",
    "getattr": "def __getattr__(name): ...",
    "global": "def make():\n    global training\n    training = print\nmake()",
}
ABSENT = {
    "nothing": "",
    "another": "def train(): ...",
    "a method": "class A:\n    def training(self): ...",
    "inside": "def f():\n    def training(): ...\n    training2 = training",
    "a local": "def f():\n    training = 1",
    "only used": "print(training)",
    "of a model": "def f(model, sys2):\n    model.eval()\n    return [m for m in model.modules()]",
}


def handed(folder: Path, code: str, run: str = "train.py:training", path: str = "train.py", **fields: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(code)
    prepare(run, folder, {"name": "a", **fields}).pack()


@pytest.mark.parametrize("code", [*BOUND.values(), *UNKNOWN.values()], ids=[*BOUND, *UNKNOWN])
def test_a_name_that_is_there_or_may_come_about_passes(tmp_path: Path, code: str) -> None:
    handed(tmp_path, code)


@pytest.mark.parametrize("code", ABSENT.values(), ids=ABSENT)
def test_a_name_that_is_not_there_is_refused_with_field_value_and_fix(tmp_path: Path, code: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        handed(tmp_path, code)
    told = caught.value
    assert (told.field, told.value) == ("run", "train.py:training")
    assert told.message == "train.py has no function training" and told.fix


def test_the_fix_names_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec) as caught:
        handed(tmp_path, "def train(): ...\ndef _own(): ...")
    assert caught.value.fix == "did you mean train.py:train?"
    with pytest.raises(InvalidSpec) as caught:
        handed(tmp_path, "def a(): ...\ndef b(): ...")
    assert caught.value.fix == "use one of: a, b"


@pytest.mark.parametrize("path", ["package/module.py", "package/module/__init__.py"])
def test_a_module_whose_source_goes_along_is_read_too(tmp_path: Path, path: str) -> None:
    handed(tmp_path, "def training(): ...", "package.module:training", path)
    with pytest.raises(InvalidSpec, match=f"{path} has no function nope"):
        prepare("package.module:nope", tmp_path, {"name": "a"}).pack()
    prepare("installed.module:nope", tmp_path, {"name": "a"}).pack()  # only its worker can know


def test_a_yaml_file_is_named_with_its_field(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def training(): ...\n")
    (tmp_path / "job.yaml").write_text("name: a\nrun: train.py:nope\n")
    with pytest.raises(InvalidSpec, match=r"^job.yaml: run: train.py has no function nope$"):
        prepare(tmp_path / "job.yaml", None, {}).pack()


def test_nothing_is_run_to_find_out(tmp_path: Path) -> None:
    handed(tmp_path, "raise SystemExit('was run')\ndef training(): ...")
    assert "train" not in sys.modules


@pytest.mark.parametrize("code", ["def training(:\n", "x = '\0'\n", "  def training(): ...\n"])
def test_a_file_that_is_not_python_is_refused_unless_another_python_is_to_run_it(tmp_path: Path, code: str) -> None:
    with pytest.raises(InvalidSpec, match=r"cannot be read as Python: train.py"):
        handed(tmp_path, code)
    handed(tmp_path, code, venv="/some/where")


def test_a_function_in_hand_needs_no_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up.py").write_text("import builtins\n(lambda: 0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import made_up  # type: ignore[import-not-found]

    def training() -> None: ...

    training.__module__, training.__qualname__ = "made_up", "training"
    made_up.training = training
    assert prepare(training, None, {}).pack().files
    sys.modules.pop("made_up")
