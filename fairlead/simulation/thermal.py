"""How warm simulated nodes become: towards what their present power leads to, with a time constant.

A node that draws P of the P_full that all its devices busy would draw tends to

    T(P) = cool + (hot - cool) * P / P_full,      T(t + s) = T(P) + (T(t) - T(P)) * exp(-s / tau)

A first-order model: one lump of heat, a fan that takes away in proportion to the difference. Nodes do not warm each
other, and do not slow down when hot: it is for showing where a policy puts work, not for sizing a room.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fairlead.cluster import Node
from fairlead.scheduling.market.energy import power


def tends_to(node: Node, busy: int) -> float:
    """Steady-state degrees with so many busy devices."""
    assert node.heats is not None
    cool_c, hot_c, _ = node.heats
    drawn, devices = power(node), max(node.devices, 1)
    watts = devices * drawn.asleep_w if node.asleep else busy * drawn.busy_w + (devices - busy) * drawn.idle_w
    return cool_c + (hot_c - cool_c) * watts / max(devices * drawn.busy_w, 1e-9)


class Temperatures:
    """Temperatures of nodes with thermal data; they begin at their idle temperature."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.now_c = {node.name: tends_to(node, 0) for node in nodes if node.heats is not None}
        self.peak_c = dict(self.now_c)

    def advance(self, seconds: float, nodes: Mapping[str, Node], free: Mapping[str, int]) -> None:
        """Advance time with these free devices."""
        for name, before_c in self.now_c.items():
            node = nodes[name]
            assert node.heats is not None
            end_c = tends_to(node, max(0, node.devices - free[name]) if node.schedulable else 0)
            now_c = end_c + (before_c - end_c) * math.exp(-seconds / max(node.heats[2], 1e-9))
            self.now_c[name] = now_c
            self.peak_c[name] = max(self.peak_c[name], now_c)
