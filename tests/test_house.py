"""The rules of the house hold: imports point downwards, ruff is content, and every room is typed (`make lint`)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOOLS = Path(sys.executable).parent
SOURCES = sorted((ROOT / "fairlead").rglob("*.py"))


def run(*command: str) -> tuple[int, str]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout + done.stderr


def test_imports_point_downwards_and_the_core_is_pure() -> None:
    code, said = run(str(TOOLS / "lint-imports"), "--no-cache")
    assert code == 0, said


def test_ruff_has_nothing_to_say() -> None:
    code, said = run(str(TOOLS / "ruff"), "check", "--no-cache", ".")
    assert code == 0, said


@pytest.mark.timeout(600)  # without a cache of an earlier run it reads torch, too
def test_every_room_is_fully_typed() -> None:
    code, said = run(str(TOOLS / "mypy"), "fairlead")
    assert code == 0, said


def test_the_control_plane_and_the_doors_load_without_torch() -> None:
    """The contracts see import statements; this sees what is really loaded."""
    rooms = ["views", "scheduling", "control.serve", "agent.embedded.backend", "api.app", "cli.main", "sdk.client"]
    load = f"import importlib, sys\nfor room in {rooms}: importlib.import_module('fairlead.' + room)\n"
    load += "sys.exit('torch was loaded' if 'torch' in sys.modules else 0)"
    code, said = run(sys.executable, "-c", load)
    assert code == 0, said


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_is_for_and_fits_in_the_head(source: Path) -> None:
    text = source.read_text()
    if text.strip() and "migrations/versions" not in source.as_posix():
        assert ast.get_docstring(ast.parse(text)), "the first line says in one sentence what the module is for"
    assert len(text.splitlines()) <= 400
