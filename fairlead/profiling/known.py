"""Known device types, and hardware in words: ``2x4xa100`` is two nodes with four A100s each."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from fairlead.errors import InvalidSpec
from fairlead.planning.profiles import Device, Hardware, Link, Seat, device_from


@functools.cache
def _read() -> Mapping[str, Mapping[str, Any]]:
    text = resources.files("fairlead.planning").joinpath("devices.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def known_types() -> list[str]:
    return sorted(_read())


def known_device(name: str) -> Device:
    """By its type's name, as in ``fairlead/planning/devices.toml``."""
    values = _of(name)
    return device_from({"name": name, **{key: value for key, value in values.items() if key not in ("near", "far")}})


def known_links(name: str) -> tuple[Link, Link]:
    """Within a node and between nodes, as machines with this device usually have them."""
    values = _of(name)
    near, far = (Link(values[key]["latency_s"], values[key]["bytes_per_s"]) for key in ("near", "far"))
    return near, far


def _of(name: str) -> Mapping[str, Any]:
    if name not in _read():
        known = ", ".join(known_types())
        raise InvalidSpec(f"{name!r} is not a known device type", field="--cluster", fix=f"use one of: {known}")
    return _read()[name]


def cluster_of(groups: Sequence[tuple[int, int, str]]) -> Hardware:
    """(nodes, devices per node, type) for each group: what a plan on paper runs on."""
    devices, seats, links = {}, [], []
    for at, (nodes, per_node, name) in enumerate(groups):
        devices[name] = known_device(name)
        links.append(known_links(name))
        seats += [Seat(name, f"{name}.{at}-{node}") for node in range(nodes) for _ in range(per_node)]
    near = Link(max(n.latency_s for n, _ in links), min(n.bytes_per_s for n, _ in links))
    far = Link(max(f.latency_s for _, f in links), min(f.bytes_per_s for _, f in links))
    return Hardware(devices=devices, seats=tuple(seats), links=(near, far))
