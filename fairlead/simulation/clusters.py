"""Parses clusters: ``8xv100,16xp100`` as flat pools, ``16x4xt4`` as nodes with devices, or a YAML file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairlead.cluster import DEVICE, Node
from fairlead.errors import InvalidSpec

PART = re.compile(r"(\d+)x(?:(\d+)x)?([A-Za-z][\w.-]*)")
RACK = 16
"""Nodes per rack, which fail together, unless a file says otherwise."""

KEYS = frozenset({"type", "nodes", "devices", "rack", "zone", "labels", "cpu", "memory", "watts", "heats"})
EXAMPLE = "[{type: t4, nodes: 16, devices: 4}]"
NO_MORE: Mapping[str, Any] = {}
FIX = "write 8xv100,16xp100 (pools), 16x4xt4 (nodes x devices x type), or name a YAML file"


def cluster(text: str, field: str = "--cluster") -> tuple[Node, ...]:
    """The nodes described by this text or file; ``field`` names the option for errors."""
    path = Path(text)
    if path.suffix in (".yaml", ".yml"):
        return _from_file(path, field)
    nodes: list[Node] = []
    for part in text.split(","):
        nodes += _part(part.strip(), {node.name for node in nodes}, field)
    return tuple(nodes)


def is_pool(node: Node) -> bool:
    """Whether the node is a flat pool, whose devices fail one by one; a pool is named after its type."""
    return node.name.partition(".")[0] == node.device_type


def _part(text: str, taken: set[str], field: str) -> Sequence[Node]:
    parsed = PART.fullmatch(text)
    if parsed is None or int(parsed[1]) < 1 or (parsed[2] and int(parsed[2]) < 1):
        raise InvalidSpec(f"{text!r} is not a cluster", field=field, fix=FIX)
    count, per_node, kind = int(parsed[1]), parsed[2], parsed[3].lower()
    if per_node is None:
        return [Node(_free_name(kind, taken), {DEVICE: float(count)}, kind)]
    return _nodes(kind, count, int(per_node), RACK, taken)


def _nodes(
    kind: str, count: int, devices: int, rack: int, taken: set[str], group: Mapping[str, Any] = NO_MORE
) -> list[Node]:
    prefix = _free_name(kind, {name.rpartition("-")[0] for name in taken})
    zone = (str(group["zone"]),) if "zone" in group else ()
    capacity = {name: float(group[name]) for name in ("cpu", "memory") if name in group}
    watts = (float(group["watts"][0]), float(group["watts"][1])) if "watts" in group else None
    heats = _heats(group["heats"]) if "heats" in group else None
    found = []
    for at in range(count):
        name = f"{prefix}-{at:04d}"
        topology = (*zone, f"{prefix}-rack-{at // rack:03d}", name)
        found.append(
            Node(
                name, {**capacity, DEVICE: float(devices)}, kind, topology=topology, watts=watts, heats=heats,
                labels=frozenset(str(label) for label in group.get("labels", ())),
            )
        )  # fmt: skip
    return found


def _heats(written: Any) -> tuple[float, float, float]:
    cool_c, hot_c, constant_s = (float(one) for one in written)
    if hot_c < cool_c or constant_s <= 0:
        raise ValueError("heats: degrees without power, at full power, and the seconds it takes")
    return cool_c, hot_c, constant_s


def _free_name(wanted: str, taken: set[str]) -> str:
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}.{number}"
    return name


def _from_file(path: Path, field: str) -> tuple[Node, ...]:
    """A list of groups: ``{type: t4, nodes: 16, devices: 4, rack: 8}``; without ``nodes`` a flat pool.

    A group of nodes may also have a ``zone``, ``labels``, ``cpu`` and ``memory`` of each node, the ``watts`` that a
    device draws, idle and busy, and how a node ``heats`` up: degrees without power, at full power, and time constant.
    """
    import yaml

    if not path.is_file():
        raise InvalidSpec(f"there is no file {path}", field=field, fix=FIX)
    try:
        written = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        text = " ".join(str(error).split())
        raise InvalidSpec(f"this is no YAML: {text}", field=path.name, fix=f"write for example {EXAMPLE}") from error
    groups = written.get("nodes", written) if isinstance(written, Mapping) else written
    if not isinstance(groups, list) or not groups:
        text = f"{groups!r:.60} is not a list of groups of nodes" if groups else "there are no groups of nodes in it"
        raise InvalidSpec(text, field=path.name, fix=f"write for example {EXAMPLE}")
    nodes: list[Node] = []
    for group in groups:
        nodes += _group(group, path, {node.name for node in nodes})
    return tuple(nodes)


def _whole(written: Any) -> int:
    if isinstance(written, float) and written != int(written):
        raise ValueError("it is not a whole number")
    return int(written)


def _group(group: Any, path: Path, taken: set[str]) -> Sequence[Node]:
    if isinstance(group, Mapping) and (unknown := sorted(str(key) for key in group.keys() - KEYS)):
        fix = f"one of {', '.join(sorted(KEYS))}"
        raise InvalidSpec(f"there is no {unknown[0]!r} of a group of nodes", field=path.name, fix=fix)
    try:
        kind, devices = str(group["type"]).lower(), _whole(group["devices"])
        count, rack = _whole(group.get("nodes", 0)), _whole(group.get("rack", RACK))
        made = _nodes(kind, max(count, 0), devices, max(rack, 1), taken, group)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        fix = "write for example {type: t4, nodes: 16, devices: 4}, in whole numbers"
        raise InvalidSpec(f"{group!r} is not a group of nodes", field=path.name, fix=fix) from error
    if devices < 1 or count < 0 or rack < 1:
        raise InvalidSpec(f"{group!r} has too few nodes or devices", field=path.name, fix="write 1 or more")
    return made if count else _part(f"{devices}x{kind}", taken, path.name)
