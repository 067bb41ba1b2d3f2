"""Judges one mutant: runs the tests that call what it changes, and tells which of them noticed."""

from __future__ import annotations

import difflib
import json
import re
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutants.coverage_map import Test
from tests.mutants.mutations import Mutant
from tests.mutants.plugin import again_on_another_database
from tests.mutants.trees import CHECKOUT, Tree

KILLED, SURVIVED, UNDECIDED = "killed", "survived", "undecided"
SHORT_S = 2.0  # a test that takes no longer depends little on what else runs
AT_MOST_S = 90.0  # of tests for one mutant, by what they take unchanged
STARTUP_S = 60.0
TRIES = 3


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant: `by` is the test that noticed, `unrun` counts tests that were left out for time."""

    verdict: str
    by: str
    tests: int
    unrun: int


def chosen(mutant: Mutant, tests: Sequence[Test]) -> list[Test]:
    """Tests that reach the changed function, in the order in which they run; without any, those of its module."""
    sound = [test for test in tests if test.passes]
    return _in_order(mutant, _once(_nearest(mutant, sound) or _naming(mutant, sound) or sound))


def within(limit_s: float, tests: Sequence[Test]) -> list[Test]:
    """As many as fit: those that reach fewest functions first, since they look at them most closely."""
    left, names = limit_s, set()
    for test in sorted(tests, key=lambda test: (len(test.calls), test.s)):
        if not names or test.s <= left:
            names.add(test.name)
            left -= test.s
    return [test for test in tests if test.name in names]


def _nearest(mutant: Mutant, tests: list[Test]) -> list[Test]:
    parts = mutant.function.split(".<locals>.")
    for end in range(len(parts), 0, -1):
        call = f"{mutant.module}:{'.<locals>.'.join(parts[:end])}"
        if found := [test for test in tests if call in test.calls]:
            return found
    in_class = f"{mutant.module}:{mutant.function}."
    if found := [test for test in tests if any(call.startswith(in_class) for call in test.calls)]:
        return found
    return [test for test in tests if mutant.module in test.modules]


def _naming(mutant: Mutant, tests: list[Test]) -> list[Test]:
    """Tests in files that import the module: for one without functions, such as a schema."""
    name = re.compile(rf"import .*\b{Path(mutant.module).stem}\b|^from .*\b{Path(mutant.module).stem} import", re.M)
    files = {test.file for test in tests}
    naming = {file for file in files if (CHECKOUT / file).exists() and name.search((CHECKOUT / file).read_text())}
    return [test for test in tests if test.file in naming]


def _once(tests: list[Test]) -> list[Test]:
    """Without the same test on another database."""
    names = {test.name for test in tests}
    return [test for test in tests if not again_on_another_database(test.name, names)]


def _in_order(mutant: Mutant, tests: list[Test]) -> list[Test]:
    """Files by what one test takes in the mean, that of the module's name first."""
    files: dict[str, list[Test]] = {}
    for test in tests:
        files.setdefault(test.file, []).append(test)
    own = f"test_{Path(mutant.module).stem}.py"
    turns = sorted(
        files, key=lambda file: (not file.endswith(own), sum(test.s for test in files[file]) / len(files[file]))
    )
    return [test for file in turns for test in sorted(files[file], key=lambda test: test.s)]


def _shortest(tests: Sequence[Test], noticed: str) -> list[Test]:
    """Of a file that could not be imported the test that takes least: it tells whether that is the mutant's doing."""
    of_file = [test for test in tests if test.file == noticed]
    return [min(of_file, key=lambda test: test.s)] if of_file else list(tests)


class Judge:
    """Judges mutants in one tree. What is known of tests on the unchanged tree is shared with other judges."""

    def __init__(self, tree: Tree, sound: dict[str, bool], lock: threading.Lock) -> None:
        self._tree = tree
        self._sound = sound
        self._lock = lock

    def judge(self, room: str, mutant: Mutant, tests: Sequence[Test]) -> Verdict:
        every = chosen(mutant, tests)
        left = within(AT_MOST_S, every)
        unrun = len(every) - len(left)
        for _ in range(TRIES):
            if not left:
                break
            self._tree.write(Path(mutant.module), mutant.text)
            noticed = self._noticed(room, left)
            self._tree.restore()
            if noticed is None:
                return Verdict(SURVIVED, "", len(left), unrun)
            accused = [test for test in left if test.name == noticed] or _shortest(left, noticed)
            if self._passes(room, accused):
                return Verdict(KILLED, noticed, len(left), unrun)
            left = [test for test in left if test not in accused]
        return Verdict(UNDECIDED, "", len(left), unrun)

    def _passes(self, room: str, tests: list[Test]) -> bool:
        """Whether tests that noticed a mutant pass without it. What depends on time is asked each time."""
        names = "\n".join(test.name for test in tests)
        lasting = len(tests) == 1 and tests[0].s <= SHORT_S
        with self._lock:
            if lasting and names in self._sound:
                return self._sound[names]
        passes = self._noticed(room, tests) is None
        with self._lock:
            self._sound[names] = passes
        return passes

    def _noticed(self, room: str, tests: Sequence[Test]) -> str | None:
        """The name of the first test that fails; None if all pass."""
        each_s = min(180.0, max(20.0, 10 * max(test.s for test in tests)))
        limit_s = STARTUP_S + 6 * sum(test.s for test in tests)
        with tempfile.TemporaryDirectory(prefix="fm-run-") as folder:
            out, names = Path(folder) / "out", Path(folder) / "names"
            names.write_text("\n".join(test.name for test in tests))
            variables = {"FAIRLEAD_MUTANTS_OUT": str(out), "FAIRLEAD_MUTANTS_TESTS": str(names)}
            files = list(dict.fromkeys(test.file for test in tests))
            ran = self._tree.pytest(room, ["-x", f"--timeout={each_s:.0f}", *files], limit_s, variables)
            told: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
        if told.get("failed"):
            return str(next(iter(told["failed"])))
        if ran.code is None:
            return "(time limit)"
        return None if ran.code == 0 else "(end of the test process)"


def diff(mutant: Mutant) -> str:
    source = (CHECKOUT / mutant.module).read_text()
    lines: Iterable[str] = difflib.unified_diff(source.splitlines(), mutant.text.splitlines(), lineterm="", n=0)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))
