"""The faults of a campaign: what is killed, stopped and continued, or started again, and who is spared."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.chaos.crashable import Crashable

WEIGHTS = {
    "worker killed": 6, "node manager killed": 3, "control plane killed": 2, "control plane ended and started": 1,
    "worker stopped": 3, "node manager stopped": 2, "control plane stopped": 1,
}  # fmt: skip
STOPPED_S = (5.0, 20.0)
NODE_BACK_S = 5.0  # about what it takes to start a node manager again that was killed
MOST_STOPPED = 2
"""At a time: what stands still is not hit by the next fault."""


@dataclass(slots=True)
class Fault:
    """One fault, and what it hit."""

    number: int
    kind: str
    victim: str
    at_s: float
    workers: list[str] = field(default_factory=list)  # "job/worker", of those that died or stood still
    for_s: float = 0.0  # how long it stood still
    back_s: float | None = None  # until the API answered again, of a control plane

    def workers_of(self, job: str) -> list[str]:
        """The workers of this job that it hit."""
        return [name for owner, _, name in (worker.partition("/") for worker in self.workers) if owner == job]

    @property
    def away_s(self) -> float:
        """How long the victim did nothing, if others rely on it."""
        if "node manager" in self.kind:
            return self.for_s or NODE_BACK_S
        return self.for_s or self.back_s or 0.0 if self.victim == "control plane" else 0.0


class Stopped:
    """Processes that stand still now; each goes on after its time, whatever happens to the campaign."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}
        self._timers: list[threading.Timer] = []
        self._lock = threading.Lock()

    def stop(self, name: str, pid: int, for_s: float) -> None:
        descriptor = os.pidfd_open(pid)  # a number may be another process's by then
        signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
        self._descriptors[name] = descriptor
        timer = threading.Timer(for_s, self._go_on, [name])
        self._timers = [*(each for each in self._timers if each.is_alive()), timer]
        timer.start()

    def _go_on(self, name: str) -> None:
        with self._lock:
            descriptor = self._descriptors.pop(name, -1)
            if descriptor < 0:
                return  # it went on already
            with contextlib.suppress(ProcessLookupError):  # it was ended meanwhile
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            os.close(descriptor)

    @property
    def names(self) -> set[str]:
        return set(self._descriptors)

    def continue_all(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for name in self.names:
            self._go_on(name)


class Faults:
    """Draws the next fault from a seed, so that the same number under the same seed is the same kind of fault."""

    def __init__(self, platform: Crashable, seed: int, stopped: Stopped) -> None:
        self._platform = platform
        self._seed = seed
        self._stopped = stopped

    def chance(self, number: int) -> random.Random:
        return random.Random(f"{self._seed}-{number}")

    def inject(self, number: int, may_lose: Mapping[str, bool]) -> Fault | None:
        """Do the fault of this number; None: nothing that it could hit may be hit now."""
        chance = self.chance(number)
        kind = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        for_s = chance.uniform(*STOPPED_S)
        what, _, how = kind.rpartition(" ")
        if kind == "control plane ended and started":
            return self._control(number, kind, signal.SIGTERM)
        if kind == "control plane killed":
            return self._control(number, kind, signal.SIGKILL)
        victims = self._victims(what, may_lose)
        if not victims or (how == "stopped" and len(self._stopped.names) >= MOST_STOPPED):
            return None
        victim = chance.choice(sorted(victims))
        hit = self._workers_of(victim) if what == "node manager" else [victim] if what == "worker" else []
        fault = Fault(number, kind, victim, time.time(), hit)
        if how == "stopped":
            fault.for_s = for_s
            return fault if self._stop(victim, victims[victim], for_s) else None
        with contextlib.suppress(ProcessLookupError):
            os.kill(victims[victim], signal.SIGKILL)
            return fault
        return None

    def _stop(self, victim: str, pid: int, for_s: float) -> bool:
        try:
            self._stopped.stop(victim, pid, for_s)
        except ProcessLookupError:
            return False
        return True

    def _victims(self, what: str, may_lose: Mapping[str, bool]) -> dict[str, int]:
        still = self._stopped.names
        if what == "control plane":
            return {} if what in still else {what: self._platform.control_pid}
        if what == "worker":
            workers = self._platform.workers().items()
            return {n: pid for n, pid in workers if n not in still and may_lose.get(n.partition("/")[0], True)}
        managers = {name: pid for name, pid in self._platform.node_managers().items() if name not in still}
        spared = {name for name in managers if not all(map(_may(may_lose), self._workers_of(name)))}
        most = len(self._platform.node_records()) // 2
        return {} if len(managers) <= most else {n: pid for n, pid in managers.items() if n not in spared}

    def _workers_of(self, node: str) -> list[str]:
        return sorted(self._platform.node_records().get(node, {}).get("workers", {}))

    def _control(self, number: int, kind: str, how: signal.Signals) -> Fault | None:
        if "control plane" in self._stopped.names:
            return None
        pid, at_s = self._platform.control_pid, time.time()
        gone = os.pidfd_open(pid)
        signal.pidfd_send_signal(gone, how)
        _wait_for_end(gone)
        self._platform.up()
        self._platform.client.health()
        return Fault(number, kind, "control plane", at_s, back_s=time.time() - at_s)


def _may(may_lose: Mapping[str, bool]) -> Callable[[str], bool]:
    return lambda worker: may_lose.get(worker.partition("/")[0], True)


def _wait_for_end(descriptor: int) -> None:
    import select

    try:
        if not select.select([descriptor], [], [], 60.0)[0]:
            raise AssertionError("the control plane does not end")
    finally:
        os.close(descriptor)
