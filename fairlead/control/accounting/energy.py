"""Computes the energy of nodes from the usage ledger, their sleep and the power of their devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from fairlead.cluster import Node
from fairlead.control.accounting.report import Held
from fairlead.control.store.node_sleep import NodeSleep
from fairlead.scheduling.market.energy import energy_kwh, power, usual_power

JOULES_PER_KWH = 3.6e6


def energy_report(
    nodes: Sequence[Node], ledger: Sequence[Held], rests: Iterable[NodeSleep], since_s: float, until_s: float
) -> dict[str, Any]:
    """Energy of all nodes in a range: ``kwh``, savings by sleep, time and number of sleeps, and ``tenants``.

    A tenant is charged for what its devices drew while it held them; the rest was drawn by idle nodes.
    """
    busy_s, asleep_s, wakes = Counter[str](), Counter[str](), Counter[str]()
    took_s: dict[str, list[float]] = {}
    for line in ledger:
        busy_s[line.node] += line.devices * _within(line.from_s, line.to_s, since_s, until_s)  # type: ignore[assignment]
    for rest in rests:
        asleep_s[rest.node] += _within(rest.from_s, rest.to_s, since_s, until_s)  # type: ignore[assignment]
        if rest.woken_in_s is not None:
            wakes[rest.node] += 1
            took_s.setdefault(rest.node, []).append(rest.woken_in_s)
    woken = [replace(node, wake_s=fmean(took_s.get(node.name, [node.wake_s]))) for node in nodes]
    span_s = max(0.0, until_s - since_s)
    drawn = energy_kwh(woken, busy_s, asleep_s, wakes, span_s)
    return {
        "kwh": drawn,
        "saved_kwh": energy_kwh(woken, busy_s, {}, {}, span_s) - drawn,
        "asleep_s": float(sum(asleep_s.values())),
        "wakes": sum(wakes.values()),
        "tenants": _by_tenant(nodes, ledger, since_s, until_s),
    }


def _by_tenant(nodes: Sequence[Node], ledger: Iterable[Held], since_s: float, until_s: float) -> dict[str, float]:
    watts = {node.name: power(node).busy_w for node in nodes}
    found: dict[str, float] = {}
    for line in ledger:
        busy_w = watts[line.node] if line.node in watts else usual_power(line.device_type).busy_w
        held_s = line.devices * _within(line.from_s, line.to_s, since_s, until_s)
        found[line.tenant] = found.get(line.tenant, 0.0) + held_s * busy_w / JOULES_PER_KWH
    return dict(sorted(found.items()))


def _within(from_s: float, to_s: float | None, since_s: float, until_s: float) -> float:
    """Seconds of a period inside the range; a period without an end goes on."""
    return max(0.0, min(until_s if to_s is None else to_s, until_s) - max(from_s, since_s))
