"""`python -m tests.mutants`: draws mutants of the core by seed and tells which of them no test notices.

A run can be interrupted: with the same seed it goes on. A verdict holds for the same module and the same tests.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.mutants import coverage_map, sampler
from tests.mutants.coverage_map import CACHE, Test
from tests.mutants.judge import KILLED, SURVIVED, UNDECIDED, Judge, diff
from tests.mutants.mutations import Mutant
from tests.mutants.tables import table
from tests.mutants.trees import Tree

EQUIVALENT = "equivalent"


class Run:
    """One draw of mutants, and a file with the verdict on each."""

    def __init__(self, seed: int, rooms: Sequence[str], count: int) -> None:
        self.rooms = rooms
        self.drawn = sampler.drawn(seed, rooms, count)
        self.equivalents = sampler.equivalents()
        self.versions = {room: coverage_map.version(room) for room in rooms}
        self.sources = {mutant.module: coverage_map.source(mutant.module) for _, mutant in self.drawn}
        CACHE.mkdir(exist_ok=True)
        self.file = CACHE / f"seed-{seed}.jsonl"
        self.verdicts: dict[str, dict[str, Any]] = {}
        for line in self.file.read_text().splitlines() if self.file.exists() else []:
            self.verdicts[json.loads(line)["key"]] = json.loads(line)
        self._lock = threading.Lock()

    def open(self) -> list[tuple[str, Mutant]]:
        """Those without a verdict on the module and the tests as they are now."""
        return [(room, mutant) for room, mutant in self.drawn if self.verdict(room, mutant) is None]

    def verdict(self, room: str, mutant: Mutant) -> str | None:
        if mutant.key in self.equivalents:
            return EQUIVALENT
        told = self.verdicts.get(mutant.key)
        holds = told is not None and told.get("of") == self._judged(room, mutant)
        return str(told["verdict"]) if told is not None and holds else None

    def write(self, room: str, mutant: Mutant, told: dict[str, Any]) -> None:
        full = {"key": mutant.key, "room": room, "line": mutant.line, "of": self._judged(room, mutant), **told}
        with self._lock, self.file.open("a") as file:
            file.write(json.dumps(full) + "\n")
            self.verdicts[mutant.key] = full

    def _judged(self, room: str, mutant: Mutant) -> list[str]:
        """What a verdict is on: the module and the tests."""
        return [self.sources[mutant.module], self.versions[room]]

    def told(self) -> str:
        results = [(room, self.verdict(room, mutant) or UNDECIDED) for room, mutant in self.drawn]
        parts = [table(self.rooms, results)]
        for room, mutant in self.drawn:
            verdict = self.verdict(room, mutant)
            if verdict in (SURVIVED, UNDECIDED):
                told = self.verdicts[mutant.key]
                unrun = f", {told['unrun']} more not run" if told["unrun"] else ""
                parts.append(
                    f"{verdict}: {mutant.module}:{mutant.line} {mutant.function} ({told['tests']} tests{unrun})\n"
                    f"{diff(mutant)}\n  change: {mutant.change}"
                )
        return "\n\n".join(parts)


def _judge_all(run: Run, tests: dict[str, list[Test]], trees: list[Tree]) -> None:
    waiting: queue.SimpleQueue[tuple[str, Mutant]] = queue.SimpleQueue()
    for each in run.open():
        waiting.put(each)
    sound: dict[str, bool] = {}
    lock = threading.Lock()

    def work(tree: Tree) -> None:
        judge = Judge(tree, sound, lock)
        while True:
            try:
                room, mutant = waiting.get_nowait()
            except queue.Empty:
                return
            began = time.monotonic()
            found = judge.judge(room, mutant, tests[room])
            run.write(room, mutant, {**vars(found), "s": round(time.monotonic() - began, 1)})
            where = f"{mutant.module}:{mutant.line} {mutant.function}"
            print(f"{found.verdict:<9} {where}: {mutant.change[:120]}  {found.by}", flush=True)

    with ThreadPoolExecutor(len(trees)) as pool:
        for ended in [pool.submit(work, tree) for tree in trees]:
            ended.result()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--rooms", default=",".join(sampler.ROOMS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="default: drawn now, and printed")
    parser.add_argument("--count", type=int, default=100, help="mutants to draw (default: %(default)s)")
    parser.add_argument("--side-by-side", type=int, default=2, help="mutants judged at once (default: %(default)s)")
    parser.add_argument("--least", type=float, default=0.0, help="exit code 1 below this percentage (default: none)")
    asked = parser.parse_args()
    rooms = tuple(asked.rooms.split(","))
    known = (*sampler.ROOMS, *sampler.ON_REQUEST)
    if strange := [room for room in rooms if room not in known]:
        parser.error(f"--rooms: {strange[0]} is none of {', '.join(known)}")
    seed = asked.seed if asked.seed is not None else int(time.time()) % 1_000_000
    print(f"seed {seed}", flush=True)
    run = Run(seed, rooms, asked.count)
    trees = [Tree.free() for _ in range(asked.side_by_side)]
    try:
        tests = {room: coverage_map.tests_of(room, trees) for room in rooms}
        _judge_all(run, tests, trees)
    finally:
        for tree in trees:
            tree.close()
    print(run.told())
    results = [run.verdict(room, mutant) for room, mutant in run.drawn]
    matter = results.count(KILLED) + results.count(SURVIVED)
    return int(asked.least > 0 and (not matter or 100 * results.count(KILLED) < asked.least * matter))


if __name__ == "__main__":
    sys.exit(main())
