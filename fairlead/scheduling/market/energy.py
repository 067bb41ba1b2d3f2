"""Models power: what devices draw when busy, idle and asleep, and which idle nodes may sleep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.cluster import Node
from fairlead.scheduling.state import ClusterState, Reason, Reservation, Sleep, Wake

BUSY_W: Mapping[str, float] = {
    "k80": 150.0, "p4": 75.0, "p100": 250.0, "v100": 300.0, "t4": 70.0, "rtx2080ti": 250.0, "rtx3090": 350.0,
    "a10": 150.0, "a30": 165.0, "a40": 300.0, "a100": 400.0, "l4": 72.0, "l40s": 350.0, "rtx4090": 450.0,
    "h100": 700.0, "h200": 700.0, "b200": 1000.0, "mi250x": 560.0, "mi300x": 750.0, "cpu": 10.0,
}  # fmt: skip
"""Board power of one device from its maker's data sheet: of a K80 half the board, of A100, H100, H200 and B200 the SXM
module, of a ``cpu`` one core. ``Node.watts`` overrides it."""

OTHER_BUSY_W = 250.0
IDLE = 0.15
"""Idle power as a part of the busy power."""

ASLEEP = 0.01
"""Power of a sleeping node's device as a part of the busy power: enough to be woken."""


@dataclass(frozen=True, slots=True)
class Power:
    """Watts of one device."""

    idle_w: float
    busy_w: float
    asleep_w: float


def usual_power(device_type: str) -> Power:
    busy_w = BUSY_W.get(device_type.lower(), OTHER_BUSY_W)
    return Power(IDLE * busy_w, busy_w, ASLEEP * busy_w)


def power(node: Node) -> Power:
    """Power of one device of this node: as configured, or as usual for its type."""
    if node.watts is None:
        return usual_power(node.device_type)
    idle_w, busy_w = node.watts
    return Power(idle_w, busy_w, ASLEEP * busy_w)


def busy_watts(nodes: Sequence[Node], types: Sequence[str]) -> NDArray[np.float64]:
    """Busy watts of a device of each type, averaged over these nodes."""
    watts, devices = dict.fromkeys(types, 0.0), dict.fromkeys(types, 0)
    usual = {kind: usual_power(kind).busy_w for kind in types}
    for node in nodes:
        kind, many = node.device_type, node.devices
        watts[kind] += many * (usual[kind] if node.watts is None else node.watts[1])
        devices[kind] += many
    return np.array([watts[kind] / devices[kind] if devices[kind] else usual[kind] for kind in types])


def worth_sleeping_s(node: Node) -> float:
    """Idle time after which sleep pays for the waking: waiting so long costs at most twice the best choice in
    hindsight (the ski-rental argument)."""
    drawn = power(node)
    return node.wake_s * drawn.busy_w / max(drawn.idle_w - drawn.asleep_w, 1e-9)


def sleep_decisions(
    state: ClusterState, seats: Mapping[str, tuple[str, ...]], reservations: Sequence[Reservation] = ()
) -> tuple[list[Sleep | Wake], dict[str, Any]]:
    """Which nodes may sleep or must wake; and since when nodes are idle, for the next round.

    ``seats`` are the seats of all jobs once this round is carried out.
    """
    if state.sleep_after_s is None:
        return [], {}
    used = {name for where in seats.values() for name in where}
    kept = {name for one in reservations for name in one.nodes}
    before: Mapping[str, float] = state.memory.get("idle_since", {})
    since = {
        node.name: before.get(node.name, state.now_s)
        for node in state.nodes
        if node.schedulable and node.name not in used and node.name not in kept
    }
    made: list[Sleep | Wake] = []
    for node in sorted(state.nodes, key=lambda node: node.name):
        if node.asleep and node.name in used:
            text = f"{node.name} wakes: a gang was placed on it; waking takes {node.wake_s:.0f} s"
            made.append(Wake(node.name, Reason("wakes", text, {"wake_s": node.wake_s})))
        elif not node.asleep and node.name in since:
            idle_s = state.now_s - since[node.name]
            if idle_s >= max(state.sleep_after_s, worth_sleeping_s(node)):
                text = f"{node.name} sleeps: idle for {idle_s / 60:.0f} minutes"
                made.append(Sleep(node.name, Reason("sleeps", text, {"idle_s": idle_s})))
    return made, {"idle_since": since}


def energy_kwh(
    nodes: Sequence[Node], busy_s: Mapping[str, float], asleep_s: Mapping[str, float], wakes: Mapping[str, int],
    span_s: float,
) -> float:  # fmt: skip
    """Energy of these nodes over a time span, from busy device seconds, seconds asleep and wake-ups by node."""
    joules = 0.0
    for node in nodes:
        drawn, slept_s = power(node), asleep_s.get(node.name, 0.0)
        busy = busy_s.get(node.name, 0.0)
        idle = max(0.0, node.devices * (span_s - slept_s) - busy)
        joules += busy * drawn.busy_w + idle * drawn.idle_w + node.devices * slept_s * drawn.asleep_w
        joules += node.devices * wakes.get(node.name, 0) * node.wake_s * (drawn.busy_w - drawn.idle_w)
    return joules / 3.6e6
