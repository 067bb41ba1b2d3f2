"""Parses ``--nodes``: ``4`` equal virtual nodes, or groups like ``2x0.7,2x0.3`` or ``2@eu,2@us``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from fairlead.cluster import DEVICE, Node, NodeState
from fairlead.errors import InvalidSpec

_GROUP = re.compile(r"^(?:(\d+)x)?(\d+(?:\.\d+)?)$")
_PLACE = re.compile(r"^[A-Za-z0-9][\w.:/-]{0,62}$")
HERE = "local"
"""The zone of nodes without a place."""

_MOST_NODES = 256
_LEAST_CPU = 0.01
_MEMORY_PART = 0.9  # of the machine; the rest is for the platform and the system


class NodeShape(msgspec.Struct, frozen=True):
    """One virtual node: a part of the real machine."""

    name: str
    cpu: float
    memory_bytes: int
    devices: int
    device_type: str = "cpu"
    speed: float = 1.0  # cpu per device, relative to the fastest node
    first_core: int = 0  # of the real machine; for affinity where there are no cgroups
    zone: str = HERE
    labels: tuple[str, ...] = ()

    def capacity(self) -> dict[str, float]:
        return {"cpu": self.cpu, "memory": float(self.memory_bytes), DEVICE: float(self.devices)}

    def node(self, state: NodeState) -> Node:
        """The node for the scheduler."""
        where, labels = (self.zone, self.name), frozenset(self.labels)
        return Node(self.name, self.capacity(), self.device_type, self.speed, where, state, labels=labels)


def parse_nodes(text: str, real_cores: int | None = None, memory_bytes: int | None = None) -> tuple[NodeShape, ...]:
    """The nodes that ``--nodes`` asks for: a count of equal ones, or groups COUNTxCORES within the machine's cores.

    A group may name a zone, ``COUNTxCORES@ZONE``, and any number of labels, ``+LABEL``. Where every group has a zone
    and none has cores (``2@eu,2@us``), all nodes are equal.
    """
    cores = real_cores or os.cpu_count() or 1
    memory = memory_bytes or psutil.virtual_memory().total
    cpus, places = _grouped(text.strip(), cores)
    if sum(cpus) > cores + 1e-6:
        why = f"asks for {sum(cpus):g} cores, and this machine has {cores}"
        raise _wrong(text, why, "lower the counts or the cores")
    devices = [max(1, int(cpu + 1e-9)) for cpu in cpus]
    fastest = max(cpu / count for cpu, count in zip(cpus, devices, strict=True))
    return tuple(
        NodeShape(
            name=f"node-{index}",
            cpu=round(cpu, 6),
            memory_bytes=int(memory * _MEMORY_PART * cpu / sum(cpus)),
            devices=count,
            speed=round(cpu / count / fastest, 6),
            first_core=int(sum(cpus[:index]) + 1e-9),
            zone=places[index][0],
            labels=places[index][1:],
        )
        for index, (cpu, count) in enumerate(zip(cpus, devices, strict=True))
    )


def _grouped(text: str, cores: int) -> tuple[list[float], list[tuple[str, ...]]]:
    """The cores, and the zone and labels, of each node."""
    groups = [part.strip().partition("@") for part in text.split(",")]
    if all(at and re.fullmatch(r"\d+", what) for what, at, _ in groups):
        counts = [_count(text, int(what)) for what, _, _ in groups]
        cpus = [cores / _count(text, sum(counts))] * sum(counts)
    else:
        whats = [what for what, _, _ in groups]
        cpus = _cpus(",".join(whats), cores)
        counts = [int(what.partition("x")[0]) if "x" in what else 1 for what in whats] if whats[1:] else [len(cpus)]
    places: list[tuple[str, ...]] = []
    for (_, at, where), count in zip(groups, counts, strict=True):
        names = tuple(where.split("+")) if at else (HERE,)
        for name in names:
            if not _PLACE.match(name):
                raise _wrong(text, f"{name!r} is not a zone or label", "write a zone and labels like 2x0.5@eu+gdpr")
        places += [names] * count
    return cpus, places


def _cpus(text: str, cores: int) -> list[float]:
    if re.fullmatch(r"\d+", text):
        count = _count(text, int(text))
        return [cores / count] * count
    cpus: list[float] = []
    for part in text.split(","):
        match = _GROUP.match(part.strip())
        if match is None:
            fix = "write 4, or groups like 2x0.7,2x0.3 or 2@eu,2@us"
            raise _wrong(text, f"{part.strip()!r} is not a group of nodes", fix)
        cpu = float(match[2])
        if cpu < _LEAST_CPU:
            raise _wrong(text, f"a node of {cpu:g} cores is too small", f"give every node at least {_LEAST_CPU} cores")
        cpus += [cpu] * _count(text, int(match[1] or 1))
        _count(text, len(cpus))
    return cpus


def _count(text: str, count: int) -> int:
    if not 1 <= count <= _MOST_NODES:
        raise _wrong(text, f"{count} nodes are not possible", f"ask for 1 to {_MOST_NODES}")
    return count


def _wrong(text: str, why: str, fix: str) -> InvalidSpec:
    return InvalidSpec(f"{text!r}: {why}", field="nodes", value=text, fix=fix)


class Division(msgspec.Struct, frozen=True):
    """Nodes and isolation as of the last start."""

    nodes: Sequence[NodeShape] = ()
    isolation: str = "auto"


def save_division(path: Path, division: Division) -> None:
    """Store it for the next start without ``--nodes`` or ``--isolation``."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(division))
    fresh.replace(path)


def load_division(path: Path) -> Division:
    """The division of the last start; an empty one when there was none."""
    if not path.exists():
        return Division()
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Division | list[NodeShape])
    except msgspec.MsgspecError as error:
        fix = f"name the nodes with --nodes, or remove {path}"
        raise InvalidSpec(f"{path}: {error}", field="nodes", fix=fix) from None
    return found if isinstance(found, Division) else Division(found)  # a list: stored by an old version
