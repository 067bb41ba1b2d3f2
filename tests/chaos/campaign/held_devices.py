"""How long devices were held, as seen from outside: the worker processes that live, looked at again and again.

A device is held from the moment at which the platform sets it aside, a little before its worker lives, and until the
platform has seen the worker's end. So each life of a worker has an allowance beside what was seen.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field

from tests.chaos.crashable import Crashable

EVERY_S = 0.25


@dataclass(slots=True)
class Held:
    """What was seen of one job."""

    device_s: float = 0.0
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
        before_s, before = time.monotonic(), dict[str, int]()
        while not self._end.wait(EVERY_S):
            workers, now_s = self._platform.workers(), time.monotonic()
            for worker in workers | before:  # one that came or went meanwhile was there for about half of the time
                job, _, name = worker.partition("/")
                part = 1.0 if worker in workers and worker in before else 0.5
                self._held[job].device_s += part * (now_s - before_s)
                self._held[job].lives.add(f"{name} {workers.get(worker, before.get(worker))}")
            before_s, before = now_s, workers
