"""Measures the energy of a simulated cluster: busy and idle devices, and sleeping nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairlead.cluster import Node
from fairlead.scheduling.market.energy import energy_kwh

WAKE_S = 120.0


@dataclass(frozen=True, slots=True)
class Energy:
    """Settings of sleep: idle time before it, and time to wake."""

    sleep_after_s: float
    wake_s: float = WAKE_S


class Meter:
    """Counts every node's busy time, sleep and wake-ups."""

    def __init__(self, nodes: Sequence[Node], began_s: float = 0.0) -> None:
        self._nodes = nodes
        self._busy_s: Counter[str] = Counter()
        self._asleep_s: Counter[str] = Counter()
        self._since_s = {node.name: began_s for node in nodes if node.asleep}
        self._wakes: Counter[str] = Counter()

    def serve(self, seats: Iterable[str], service_s: float) -> None:
        for name in seats:
            self._busy_s[name] += service_s  # type: ignore[assignment]

    def sleep(self, name: str, now_s: float) -> None:
        self._since_s[name] = now_s

    def wake(self, name: str, now_s: float) -> None:
        self._wakes[name] += 1
        self._asleep_s[name] += now_s - self._since_s.pop(name)  # type: ignore[assignment]

    def kwh(self, began_s: float, ended_s: float) -> float:
        """Energy of all nodes until then; a node still asleep has slept until the end."""
        asleep_s = {node.name: float(self._asleep_s[node.name]) for node in self._nodes}
        for name, since_s in self._since_s.items():
            asleep_s[name] += max(0.0, ended_s - since_s)
        return energy_kwh(self._nodes, self._busy_s, asleep_s, self._wakes, ended_s - began_s)
