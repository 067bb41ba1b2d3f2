"""The pytest plugin of a mutant's run: the chosen tests in the chosen order, and each test's outcome in a file.

`FAIRLEAD_MUTANTS_TESTS` names a file with one test per line (all tests, if unset); `FAIRLEAD_MUTANTS_OUT` is the file
of the outcomes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

OUT = Path(os.environ["FAIRLEAD_MUTANTS_OUT"])
CHOSEN = os.environ.get("FAIRLEAD_MUTANTS_TESTS")


class Outcomes:
    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        self.skipped: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if CHOSEN is None:
            return
        turns = {name: turn for turn, name in enumerate(Path(CHOSEN).read_text().splitlines())}
        wanted = sorted((item for item in items if item.nodeid in turns), key=lambda item: turns[item.nodeid])
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in turns])
        items[:] = wanted

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        recorder = getattr(sys.modules.get("fairlead._recorder"), "recorder", None)
        if recorder is not None:
            recorder.seen.clear()
            recorder.write(f"{os.getpid()}\ttest\t{nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.spent[report.nodeid] = self.spent.get(report.nodeid, 0.0) + report.duration
        if report.outcome == "failed":
            self.failed[report.nodeid] = report.longreprtext[-1_500:]
        elif report.outcome == "skipped":
            self.skipped.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome == "failed":
            self.failed[report.nodeid] = report.longreprtext[-1_500:]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """What the tests left behind ends with their namespace: the suite's own look for it would see other tests'."""
        told = {"code": int(exitstatus), "s": self.spent, "failed": self.failed, "skipped": sorted(self.skipped)}
        OUT.write_text(json.dumps(told))
        sys.stdout.flush()
        os._exit(int(exitstatus))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Outcomes(), "fairlead-mutants")


def pytest_unconfigure(config: Any) -> None:
    if not OUT.exists():  # an error of usage: no session
        OUT.write_text(json.dumps({"code": -1, "s": {}, "failed": {}, "skipped": []}))
