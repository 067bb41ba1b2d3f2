"""How much energy a simulated cluster uses: devices busy and idle, and nodes asleep where they may sleep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairlead.cluster import Node
from fairlead.scheduling.market.energy import energy_kwh

WAKE_S = 120.0


@dataclass(frozen=True, slots=True)
class Energy:
    """That nodes may sleep: after how long idle, and how long it takes to wake one."""

    sleep_after_s: float
    wake_s: float = WAKE_S


class Meter:
    """Keeps count of every node's hours: busy, asleep, and how often it was woken."""

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
        """Of all nodes until then; who still sleeps has slept until the end."""
        asleep_s = {node.name: float(self._asleep_s[node.name]) for node in self._nodes}
        for name, since_s in self._since_s.items():
            asleep_s[name] += max(0.0, ended_s - since_s)
        return energy_kwh(self._nodes, self._busy_s, asleep_s, self._wakes, ended_s - began_s)
