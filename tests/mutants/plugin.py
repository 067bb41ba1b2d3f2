"""The pytest plugin of a mutant's run: the chosen tests in the chosen order, and each test's outcome in a file.

`FAIRLEAD_MUTANTS_TESTS` names a file with one test per line (all tests but those on another database, if unset).
`FAIRLEAD_MUTANTS_OUT` is the file of the outcomes. `FAIRLEAD_MUTANTS_TURN` is a file into which the number of each test
goes before it begins; the outcomes are then written after every test, not only at the end.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

OUT = Path(os.environ.get("FAIRLEAD_MUTANTS_OUT", os.devnull))
CHOSEN = os.environ.get("FAIRLEAD_MUTANTS_TESTS")
TURN = os.environ.get("FAIRLEAD_MUTANTS_TURN")


class Outcomes:
    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        self.skipped: set[str] = set()
        self.collected: list[str] = []
        self.turns: list[str] = []
        self.ended: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        names = {item.nodeid for item in items}
        if CHOSEN is not None:
            turns = {name: turn for turn, name in enumerate(Path(CHOSEN).read_text().splitlines())}
            wanted = sorted((item for item in items if item.nodeid in turns), key=lambda item: turns[item.nodeid])
        else:
            wanted = [item for item in items if not again_on_another_database(item.nodeid, names)]
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = wanted
        self.collected = [item.nodeid for item in items]
        self.tell()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.turns.append(nodeid)
        if TURN is not None:
            with Path(TURN).open("r+b") as file:
                file.write(struct.pack("=I", len(self.turns)))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.ended.append(nodeid)
        if TURN is not None:
            self.tell()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.spent[report.nodeid] = self.spent.get(report.nodeid, 0.0) + report.duration
        if report.outcome == "failed":
            self.failed.setdefault(report.nodeid, report.longreprtext[-1_500:])  # its end may fail because of it
        elif report.outcome == "skipped":
            self.skipped.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome == "failed":
            self.failed[report.nodeid] = report.longreprtext[-1_500:]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """What the tests left behind ends with their namespace: the suite's own look for it would see other tests'."""
        self.tell(int(exitstatus))
        sys.stdout.flush()
        os._exit(int(exitstatus))

    def tell(self, code: int = -1) -> None:
        """Whole or not at all: the process may be ended at any time."""
        told = {
            "code": code, "s": self.spent, "failed": self.failed, "skipped": sorted(self.skipped),
            "collected": self.collected, "turns": self.turns, "ended": self.ended,
        }  # fmt: skip
        OUT.with_suffix(".new").write_text(json.dumps(told))
        OUT.with_suffix(".new").replace(OUT)


def again_on_another_database(name: str, names: Collection[str]) -> bool:
    return "[postgresql" in name and name.replace("[postgresql", "[sqlite") in names


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Outcomes(), "fairlead-mutants")


def pytest_unconfigure(config: Any) -> None:
    if not OUT.exists():  # an error of usage: no session
        OUT.write_text(json.dumps({"code": -1, "s": {}, "failed": {}, "skipped": []}))
