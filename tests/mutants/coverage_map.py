"""Which tests call which functions: made once per file of tests, kept until that file changes."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.mutants.trees import CHECKOUT, Tree

CACHE = CHECKOUT / ".mutants"
LIMIT_S = 3600.0


@dataclass
class Test:
    """One test: how long it takes, whether it passes unchanged, and the functions that it calls (module:function)."""

    __test__ = False  # nothing that pytest should collect

    name: str
    s: float
    passes: bool
    calls: set[str] = field(default_factory=set)

    @property
    def file(self) -> str:
        return self.name.split("::")[0]

    @property
    def modules(self) -> set[str]:
        return {call.split(":")[0] for call in self.calls}


def tests_of(room: str, tree: Tree) -> list[Test]:
    """All tests of a room, the map of new and changed files made first."""
    known = _load(room)
    current = dict(_files(room))
    stale = [file for file, version in current.items() if known.get(file, {}).get("version") != version]
    if stale:
        print(f"{room}: looking at what {len(stale)} files of tests call", flush=True)
        for file, tests in _looked_at(room, stale, tree).items():
            if not tests:
                print(f"{file}: nothing could be collected", flush=True)
                continue
            told = [asdict(test) | {"calls": sorted(test.calls)} for test in tests]
            known[file] = {"version": current[file], "tests": told}
        _save(room, {file: known[file] for file in current if file in known})
    return [
        Test(each["name"], each["s"], each["passes"], set(each["calls"]))
        for file in current for each in known.get(file, {}).get("tests", [])
    ]  # fmt: skip


def version(room: str) -> str:
    """Changes whenever a test of the room does."""
    return hashlib.sha256("".join(version for _, version in _files(room)).encode()).hexdigest()[:16]


def _looked_at(room: str, files: list[str], tree: Tree) -> dict[str, list[Test]]:
    with tempfile.NamedTemporaryFile(prefix="fm-log-") as log, tempfile.NamedTemporaryFile(prefix="fm-out-") as out:
        Path(log.name).chmod(0o666)
        _instrument(tree, Path(log.name))
        ran = tree.pytest(room, files, LIMIT_S, {"FAIRLEAD_MUTANTS_OUT": out.name})
        (tree.place / "fairlead" / "_recorder.py").unlink()
        tree.restore()
        told = Path(out.name).read_bytes()
        if not told:
            raise SystemExit(f"the tests did not end:\n{ran.said}")
        return _read(json.loads(told), Path(log.name).read_text().splitlines(), files)


def _instrument(tree: Tree, log: Path) -> None:
    recorder = (CHECKOUT / "tests/mutants/recorder.py").read_text().replace('LOG = ""', f"LOG = {str(log)!r}")
    (tree.place / "fairlead" / "_recorder.py").write_text(recorder)
    package = Path("fairlead/__init__.py")
    tree.write(package, (tree.place / package).read_text() + "\nfrom fairlead import _recorder\n")


def _read(told: dict[str, Any], lines: Iterable[str], files: list[str]) -> dict[str, list[Test]]:
    tests = {
        name: Test(name, spent, name not in told["failed"] and name not in told["skipped"])
        for name, spent in told["s"].items()
    }
    for name, call in _calls(lines):
        if name in tests:
            tests[name].calls.add(call)
    by_file: dict[str, list[Test]] = {file: [] for file in files}
    for test in tests.values():
        by_file.setdefault(test.file, []).append(test)
    return by_file


def _calls(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(test, call), in the order of the log: what a process calls belongs to the test that runs meanwhile."""
    current = ""
    for line in lines:
        _, module, function = [*line.split("\t"), "", ""][:3]
        if module == "test":
            current = function
        elif current and function:
            yield current, f"{module}:{function}"


def _files(room: str) -> Iterator[tuple[str, str]]:
    """Each file of the room's tests, with a hash over it."""
    for path in sorted((CHECKOUT / "tests" / room).glob("test_*.py")):
        yield str(path.relative_to(CHECKOUT)), hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _load(room: str) -> dict[str, Any]:
    file = CACHE / f"calls-{room}.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


def _save(room: str, known: dict[str, Any]) -> None:
    CACHE.mkdir(exist_ok=True)
    (CACHE / f"calls-{room}.json").write_text(json.dumps(known))
