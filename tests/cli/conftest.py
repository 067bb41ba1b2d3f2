"""A real platform for the tests of the command line: started and ended by the command line itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 150.0  # machines that run several suites at once are slow


@dataclass(frozen=True)
class Done:
    """How a command line ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Its one JSON object."""
        return json.loads(self.out)


KEPT = ("FAIRLEAD_ISOLATION",)  # of this machine, not of whoever runs the suite


@dataclass(frozen=True)
class Terminal:
    """Runs ``fairlead`` as a person would, as whoever owns the token."""

    home: Path
    token: str | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def variables(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_") or name in KEPT}
        own = {"FAIRLEAD_HOME": str(self.home), "COLUMNS": "80", "PYTHONWARNINGS": "error::DeprecationWarning:fairlead"}
        return clean | own | ({"FAIRLEAD_TOKEN": self.token} if self.token else {}) | self.environment

    def start(self, *words: str, cwd: Path = EXAMPLES) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "fairlead.cli.main", *words], cwd=cwd, env=self.variables(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def __call__(self, *words: str, cwd: Path = EXAMPLES, code: int | None = 0) -> Done:
        with self.start(*words, cwd=cwd) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert code is None or process.returncode == code, f"{words}: {process.returncode}\n{out}\n{err}"
        assert "Traceback" not in out + err
        return Done(process.returncode, out, err)

    def until(self, condition: Callable[[Any], bool], *words: str) -> Any:
        """Ask again until the answer is as it should be."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            answer = self(*words, "--json").data
            if condition(answer):
                return answer
        raise AssertionError(f"{words}: still {answer}")


@dataclass(frozen=True)
class Platform:
    """A running platform with two tenants."""

    admin: Terminal
    vision: Terminal
    text: Terminal
    first_words: Done


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    home = tmp_path_factory.mktemp("platform") / "home"
    admin = Terminal(home)
    started = admin("up", "--detach", "--nodes", "2", "--port", "0")
    try:
        tokens = {
            name: admin("tenant", "create", name, "--weight", weight, "--json").data["token"]["token"]
            for name, weight in (("vision", "2"), ("text", "1"))
        }
        yield Platform(admin, Terminal(home, tokens["vision"]), Terminal(home, tokens["text"]), started)
    finally:
        admin("down")
