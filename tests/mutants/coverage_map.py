"""Which tests call which functions: made once per file of tests, kept until that file changes.

A map that is older than a helper or the code only costs kills: what decides is how the tests end.
"""

from __future__ import annotations

import ast
import hashlib
import json
import queue
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.mutants.instrument import instrumented
from tests.mutants.mutations import modules
from tests.mutants.trees import CHECKOUT, Tree

CACHE = CHECKOUT / ".mutants"
LIMIT_S = 300.0  # for one file
GUESSED_S = 10.0  # what a test counts for that was not seen to its end
ANY = "*"


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


def tests_of(room: str, trees: Sequence[Tree]) -> list[Test]:
    """All tests of a room, the map of new and changed files made first, as many at once as there are trees."""
    known = _load(room)
    current = dict(_files(room, trees[0].place))  # as they are run, whatever changes in the checkout meanwhile
    stale = [file for file, version in current.items() if known.get(file, {}).get("version") != version]
    known = {file: known[file] for file in current if file in known}
    if stale:
        print(f"{room}: looking at what {len(stale)} files of tests call", flush=True)
        for file, tests in _looked_at(room, stale, trees):
            if not tests:
                print(f"{file}: nothing could be collected", flush=True)
                continue
            told = [asdict(test) | {"calls": sorted(test.calls)} for test in tests]
            known[file] = {"version": current[file], "tests": told}
            _save(room, known)
    return [
        Test(each["name"], each["s"], each["passes"], set(each["calls"]))
        for file in current for each in known.get(file, {}).get("tests", [])
    ]  # fmt: skip


def version(room: str) -> str:
    """Changes whenever a test of the room does, or anything that stands beside it."""
    beside = sorted((CHECKOUT / "tests" / room).rglob("*.py"))
    everyones = sorted((CHECKOUT / "tests").glob("*.py"))
    return _hash(b"".join(_hash(path.read_bytes()).encode() for path in (*beside, *everyones)))


def source(module: str) -> str:
    """Changes whenever the module does."""
    return _hash((CHECKOUT / module).read_bytes())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _looked_at(room: str, files: list[str], trees: Sequence[Tree]) -> Iterator[tuple[str, list[Test]]]:
    """Each file with its tests, as soon as it is known."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    found: queue.SimpleQueue[tuple[str, list[Test]] | BaseException | None] = queue.SimpleQueue()
    for file in files:
        waiting.put(file)

    def work(tree: Tree) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="fm-map-") as folder:
                Path(folder).chmod(0o755)
                functions = _instrument(tree, room, Path(folder))
                while not waiting.empty():
                    try:
                        file = waiting.get_nowait()
                    except queue.Empty:
                        break
                    found.put((file, _one_file(tree, room, file, functions, Path(folder))))
        except BaseException as error:  # noqa: BLE001 (raised below)
            found.put(error)
        finally:
            (tree.place / "fairlead" / "_recorder.py").unlink(missing_ok=True)
            tree.restore()
            tree.end_servers()
            found.put(None)

    threads = [threading.Thread(target=work, args=(tree,)) for tree in trees]
    for thread in threads:
        thread.start()
    running = len(threads)
    while running:
        match found.get():
            case None:
                running -= 1
            case BaseException() as error:
                raise error
            case file, tests:
                yield file, tests


def _instrument(tree: Tree, room: str, folder: Path) -> list[str]:
    """Lets all functions of the room in this tree tell that they are called; returns them by their number."""
    functions: list[str] = []
    for module in modules(CHECKOUT, room):
        text, names = instrumented((tree.place / module).read_text(), len(functions))
        functions += [f"{module}:{name}" for name in names]
        tree.write(Path(module), text)
    recorder = (CHECKOUT / "tests/mutants/recorder.py").read_text()
    files = f"LOG, TURN, COUNT = {str(folder / 'log')!r}, {str(folder / 'turn')!r}, {len(functions)}"
    (tree.place / "fairlead" / "_recorder.py").write_text(recorder.replace('LOG, TURN, COUNT = "", "", 0', files))
    return functions


def _one_file(tree: Tree, room: str, file: str, functions: list[str], folder: Path) -> list[Test]:
    log, turn, out = folder / "log", folder / "turn", folder / "out"
    log.write_bytes(b"")
    log.chmod(0o666)  # workers run as users of their own
    turn.write_bytes(bytes(4096))
    out.unlink(missing_ok=True)
    variables = {"FAIRLEAD_MUTANTS_OUT": str(out), "FAIRLEAD_MUTANTS_TURN": str(turn)}
    ran = tree.pytest(room, [file], LIMIT_S, variables)
    if not out.exists():
        print(f"{file}: the tests did not begin:\n{ran.said}", flush=True)
        return []
    told = json.loads(out.read_text())
    tests = _read(told, log.read_text().splitlines(), functions)
    if unseen := [name for name in told["collected"] if name not in tests]:
        print(f"{file}: {len(unseen)} tests take too long, they count as reaching what they import", flush=True)
        imported = {f"{module}:{ANY}" for module in _imported((tree.place / file).read_text(), room)}
        tests |= {name: Test(name, GUESSED_S, True, imported) for name in unseen}
    return list(tests.values())


def _read(told: dict[str, Any], lines: Iterable[str], functions: Sequence[str]) -> dict[str, Test]:
    """The tests that came to their end, by name. A line of the log is a turn and the number of a function."""
    unsound = {*told["failed"], *told["skipped"]}
    tests = {name: Test(name, told["s"][name], name not in unsound) for name in told["ended"]}
    for line in lines:
        turn, number = line.split()
        name = told["turns"][int(turn) - 1] if int(turn) else ""
        if name in tests:
            tests[name].calls.add(functions[int(number)])
    return tests


def _imported(text: str, room: str) -> set[str]:
    """The modules of the room that a file of tests imports."""
    named = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    every = modules(CHECKOUT, room)
    dotted = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in every}
    return {dotted[name] for name in named if name in dotted}


def _files(room: str, place: Path) -> Iterator[tuple[str, str]]:
    """Each file of the room's tests in this tree, with a hash over it."""
    for path in sorted((place / "tests" / room).glob("test_*.py")):
        yield str(path.relative_to(place)), _hash(path.read_bytes())


def _load(room: str) -> dict[str, Any]:
    file = CACHE / f"calls-{room}.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


def _save(room: str, known: dict[str, Any]) -> None:
    CACHE.mkdir(exist_ok=True)
    (CACHE / f"calls-{room}.json").write_text(json.dumps(known))
