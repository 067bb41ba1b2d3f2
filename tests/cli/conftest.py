"""A real platform for the tests of the command line: started and ended by the command line itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import nursery
from tests.nursery import Done
from tests.waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 150.0  # machines that run several suites at once are slow


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
        done = nursery.fairlead(*words, environment=self.variables(), cwd=cwd, timeout_s=PATIENCE_S)
        assert code is None or done.code == code, f"{words}: {done.code}\n{done.out}\n{done.err}"
        assert "Traceback" not in done.out + done.err
        return done

    def until(self, condition: Callable[[Any], bool], *words: str) -> Any:
        """Ask again until the answer is as it should be."""
        answers: list[Any] = []

        def fits() -> bool:
            answers[:] = [self(*words, "--json").data]
            return condition(answers[0])

        until(fits, PATIENCE_S, f"{words} answers as wanted")
        return answers[0]


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
    try:
        started = admin("up", "--detach", "--nodes", "2", "--port", "0")
        tokens = {
            name: admin("tenant", "create", name, "--weight", weight, "--json").data["token"]["token"]
            for name, weight in (("vision", "2"), ("text", "1"))
        }
        yield Platform(admin, Terminal(home, tokens["vision"]), Terminal(home, tokens["text"]), started)
    finally:
        admin("down")
