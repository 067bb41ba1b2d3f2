"""Promises about functions: one from a notebook runs where its module is not, one from a file is named by its file."""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fairlead.errors import InvalidSpec
from fairlead.sdk.functions import PICKLE, job_name, pack_function

OPEN = "import cloudpickle, sys; print(cloudpickle.loads(sys.stdin.buffer.read())(b=4))"


def run_elsewhere(pickled: bytes, folder: Path) -> str:
    """Open the function in a process that never saw where it came from."""
    done = subprocess.run([sys.executable, "-c", OPEN], input=pickled, cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


Importer = Callable[[str, str], ModuleType]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Importer:
    """Write a module into a project folder and import it from there."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.syspath_prepend(str(project))

    def write(name: str, text: str) -> ModuleType:
        path = project / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent != project:
            (path.parent / "__init__.py").touch()
        path.write_text(text)
        importlib.invalidate_caches()
        found = importlib.import_module(name)
        monkeypatch.setitem(sys.modules, name, found)
        return found

    return write


def test_a_function_of_a_file_in_the_folder_is_named_by_its_file(module: Importer, tmp_path: Path) -> None:
    function = module("travel_train", "def training(a=1): return a\n").training
    way = pack_function(function, tmp_path / "project")
    assert (way.run, way.pickled) == ("travel_train.py:training", None)
    assert pack_function(function, tmp_path).run == "project/travel_train.py:training"


def test_without_a_folder_that_of_the_module_goes_along(
    module: Importer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = module("travel_alone", "def training(): return 1\n").training
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert pack_function(function).folder == tmp_path / "project"
    monkeypatch.chdir(tmp_path / "project")
    assert pack_function(function).folder == tmp_path / "project"


def test_a_function_of_a_package_keeps_its_dotted_name(module: Importer, tmp_path: Path) -> None:
    function = module("travel_package.models.small", "def training(): return 1\n").training
    way = pack_function(function, tmp_path / "project")
    assert way.run == "travel_package.models.small:training"


def test_a_function_outside_of_the_folder_travels_by_value(module: Importer, tmp_path: Path) -> None:
    text = "BASE = 10\ndef helper(x): return x + BASE\ndef training(a=1, b=2): return helper(a) + b\n"
    function = module("travel_outside", text).training
    other = tmp_path / "other"
    other.mkdir()
    way = pack_function(function, other)
    assert way.run == f"{PICKLE}:training"
    assert way.extra == {PICKLE: way.pickled}
    assert run_elsewhere(way.pickled or b"", other) == "15"


def test_closures_lambdas_and_partials_travel_by_value(module: Importer, tmp_path: Path) -> None:
    text = "def make(a):\n    def training(b): return a * b\n    return training\ndef add(a, b): return a + b\n"
    found = module("travel_closure", text)
    for function, name, value in (
        (found.make(3), "training", "12"),
        (lambda b: b + 1, "training", "5"),
        (functools.partial(found.add, 3), "training", "7"),
    ):
        way = pack_function(function, tmp_path / "project")
        assert way.run == f"{PICKLE}:{name}"
        assert run_elsewhere(way.pickled or b"", tmp_path) == value


def test_a_function_of_a_notebook_travels_by_value_with_what_it_uses(tmp_path: Path) -> None:
    notebook = tmp_path / "notebook.py"
    notebook.write_text(
        "import sys\nfrom fairlead.sdk.functions import pack_function\nSCALE = 5\nclass Net:\n    factor = SCALE\n"
        "def experiment(b): return Net().factor * b\nway = pack_function(experiment)\n"
        "assert way.run.endswith(':experiment'), way.run\nsys.stdout.buffer.write(way.pickled)\n"
    )
    done = subprocess.run([sys.executable, notebook.name], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    notebook.unlink()
    assert run_elsewhere(done.stdout, tmp_path) == "20"


def test_nobody_sends_all_they_own_by_working_in_their_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    function: dict[str, Any] = {"__name__": "__main__"}
    exec("def training(): return 1", function)
    assert pack_function(function["training"]).folder is None


def test_what_cannot_travel_is_said_with_a_fix() -> None:
    lock = threading.Lock()

    def training() -> object:
        return lock

    with pytest.raises(InvalidSpec, match="training cannot be sent") as caught:
        pack_function(training)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("train", "train"), ("My_Model v2", "my-model-v2"), ("__", "job"), ("ü", "job"), ("x" * 60, "x" * 40),
        ("a" * 39 + "-b", "a" * 39),
    ],
)  # fmt: skip
def test_any_text_becomes_the_name_of_a_job(text: str, name: str) -> None:
    assert job_name(text) == name
