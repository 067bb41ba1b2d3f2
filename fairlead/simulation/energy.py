"""How much energy a simulated cluster uses: devices busy and idle, and nodes asleep where they may sleep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fairlead.cluster import Node
from fairlead.scheduling.market.energy import IDLE, drawn_kwh, usual_power

WAKE_S = 120.0


@dataclass(frozen=True, slots=True)
class Energy:
    """That nodes may sleep: after how long idle, and how long it takes to wake one."""

    sleep_after_s: float
    wake_s: float = WAKE_S


def busy_w(device_type: str) -> float:
    return usual_power(device_type).busy_w


def energy_kwh(devices: Mapping[str, int], served_s: Mapping[str, float], span_s: float) -> float:
    """For a span of time, from the device seconds served by type: the rest of the devices' time they idle."""
    joules = 0.0
    for device_type in _both(devices, served_s):
        busy_s = served_s.get(device_type, 0.0)
        idle_s = max(0.0, devices.get(device_type, 0) * span_s - busy_s)
        joules += busy_w(device_type) * (busy_s + IDLE * idle_s)
    return joules / 3.6e6


def _both(left: Iterable[str], right: Iterable[str]) -> list[str]:
    return sorted({*left, *right})


class Meter:
    """Keeps count of every node's hours: busy, asleep, and how often it was woken."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._busy_s: Counter[str] = Counter()
        self._asleep_s: Counter[str] = Counter()
        self._since_s: dict[str, float] = {}
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
        return drawn_kwh(self._nodes, self._busy_s, asleep_s, self._wakes, ended_s - began_s)
