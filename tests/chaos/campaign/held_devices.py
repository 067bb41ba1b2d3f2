"""How long devices were held, as seen from outside: worker processes and the nodes' records, looked at again and again.

A device is held while its worker lives, and it may be until its node forgets the worker: while nobody leads, nobody can
have it. So the ledger lies between the two. It is also held before its worker lives: a little, or until somebody leads.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from tests.chaos.crashable import Crashable

EVERY_S = 0.25


@dataclass(slots=True)
class Held:
    """What was seen of one job."""

    lived_s: float = 0.0  # device-seconds of worker processes
    known_s: float = 0.0  # ... and of those that had ended, but their node had not been told to forget
    lives: set[str] = field(default_factory=set)  # of workers: each with its process


class HeldDevices:
    """Looks at worker processes in a thread of its own; every worker holds one device while it lives."""

    def __init__(self, platform: Crashable, so_far: dict[str, Held]) -> None:
        self._platform = platform
        self._held: defaultdict[str, Held] = defaultdict(Held, so_far)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, name="held-devices")

    def __enter__(self) -> HeldDevices:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def by_job(self) -> dict[str, Held]:
        return dict(self._held)

    def _look(self) -> None:
        before_s, before, known_before = time.monotonic(), dict[str, int](), set[str]()
        while not self._end.wait(EVERY_S):
            now_s, workers = time.monotonic(), self._platform.workers()
            known = {name for record in self._platform.node_records().values() for name in record["workers"]}
            for worker in workers | before:
                seen = self._held[worker.partition("/")[0]]
                seen.lived_s += _part(worker, before, workers) * (now_s - before_s)
                seen.lives.add(f"{worker.partition('/')[2]} {workers.get(worker, before.get(worker))}")
            for worker in known | known_before:
                self._held[worker.partition("/")[0]].known_s += _part(worker, known_before, known) * (now_s - before_s)
            before_s, before, known_before = now_s, workers, known


def _part(worker: str, before: Collection[str], after: Collection[str]) -> float:
    """One that came or went between two looks was there for about half of the time."""
    return 1.0 if worker in before and worker in after else 0.5
