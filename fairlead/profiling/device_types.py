"""Known device types, and clusters built from them: ``2x4xa100`` is two nodes with four A100s each."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from fairlead.cluster import DEVICE, Node
from fairlead.errors import InvalidSpec
from fairlead.planning.profiles import Device, Hardware, Link, Seat, device_from


@functools.cache
def _read() -> Mapping[str, Mapping[str, Any]]:
    text = resources.files("fairlead.planning").joinpath("devices.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def known_types() -> list[str]:
    return sorted(_read())


def known_device(name: str) -> Device:
    """The device type of this name, from ``fairlead/planning/devices.toml``."""
    values = _of(name)
    return device_from({"name": name, **{key: value for key, value in values.items() if key not in ("near", "far")}})


def known_links(name: str) -> tuple[Link, Link]:
    """The usual links of machines with this device: within a node, and between nodes."""
    values = _of(name)
    near, far = (Link(values[key]["latency_s"], values[key]["bytes_per_s"]) for key in ("near", "far"))
    return near, far


def _of(name: str) -> Mapping[str, Any]:
    if name not in _read():
        known = ", ".join(known_types())
        raise InvalidSpec(f"{name!r} is not a known device type", field="--cluster", fix=f"use one of: {known}")
    return _read()[name]


def cluster_of(groups: Sequence[tuple[int, int, str]]) -> Hardware:
    """The hardware of a plan on paper: (nodes, devices per node, type) for each group."""
    nodes = [
        Node(f"{kind}.{at}-{number}", {DEVICE: float(devices)}, kind)
        for at, (count, devices, kind) in enumerate(groups) for number in range(count)
    ]  # fmt: skip
    return hardware_of(nodes)


def hardware_of(nodes: Sequence[Node], *, workers: int | None = None, link: Link | None = None) -> Hardware:
    """Nodes of known device types as the planner sees them: all of their devices, or the first ``workers``.

    Nodes of one rack are connected by the usual link of machines with such devices, or by ``link``; each wider domain
    has half of that.
    """
    kinds = sorted({node.device_type for node in nodes})
    seats = tuple(
        Seat(node.device_type, node.name, node.speed, node.path) for node in nodes for _ in range(node.devices)
    )
    usual = [known_links(kind) for kind in kinds]
    near = Link(max(n.latency_s for n, _ in usual), min(n.bytes_per_s for n, _ in usual))
    far = link or Link(max(f.latency_s for _, f in usual), min(f.bytes_per_s for _, f in usual))
    depth = max((len(node.path) for node in nodes), default=0)
    wider = tuple(Link(far.latency_s * 2**level, far.bytes_per_s / 2**level) for level in range(1, depth + 1))
    return Hardware(
        devices={kind: known_device(kind) for kind in kinds}, seats=seats[:workers], links=(near, far, *wider)
    )
