"""What exchanges between workers cost: latency and bandwidth by the algorithm's own factors (α–β)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fairlead.planning.profiles import Hardware, Link

EXTRA: Mapping[str, tuple[float, float]] = {"gloo": (1.15, 2.0), "nccl": (1.0, 1.0)}
"""(all-gather, reduce-scatter): bytes against those of a good ring. gloo scatters by reducing all (measured)."""


def reach(hardware: Hardware, groups: Sequence[Sequence[int]]) -> Link:
    """The link that groups of workers see which all exchange at once: the slowest of any, shared at the node's door."""
    widest, crowding = 0, 1
    for members in groups:
        widest = max(widest, hardware.level(members))
    if widest:
        doors: dict[str, int] = {}
        for members in groups:
            for node in {hardware.seats[worker].node for worker in members}:
                doors[node] = doors.get(node, 0) + 1
        crowding = max(doors.values())
    link = hardware.links[widest]
    inner = hardware.links[0]
    # A ring that leaves the node also passes through it: it is as slow as the slower of both.
    return Link(max(link.latency_s, inner.latency_s), min(link.bytes_per_s / crowding, inner.bytes_per_s))


def all_reduce_s(count: int, size: float, link: Link) -> float:
    """A ring for what is large, a tree for what is small."""
    if count <= 1 or size <= 0:
        return 0.0
    ring = 2 * (count - 1) * link.latency_s + 2 * (count - 1) / count * size / link.bytes_per_s
    rounds = math.ceil(math.log2(count))
    tree = 2 * rounds * link.latency_s + 2 * size / link.bytes_per_s
    return min(ring, tree)


def all_gather_s(count: int, size: float, link: Link, backend: str = "nccl") -> float:
    """``size`` is that of the whole, as everybody has it afterwards."""
    if count <= 1 or size <= 0:
        return 0.0
    bytes_sent = (count - 1) / count * size * EXTRA.get(backend, (1.0, 1.0))[0]
    return _steps(count) * link.latency_s + bytes_sent / link.bytes_per_s


def reduce_scatter_s(count: int, size: float, link: Link, backend: str = "nccl") -> float:
    if count <= 1 or size <= 0:
        return 0.0
    bytes_sent = (count - 1) / count * size * EXTRA.get(backend, (1.0, 1.0))[1]
    return _steps(count) * link.latency_s + bytes_sent / link.bytes_per_s


def _steps(count: int) -> float:
    return min(count - 1, 2 * math.ceil(math.log2(count)))


def send_s(size: float, link: Link) -> float:
    return link.latency_s + size / link.bytes_per_s


def hierarchical_s(outer: int, inner: int, size: float, near: Link, far: Link) -> float:
    """Summed within each ring of neighbours, between one of each ring, and handed back (D4)."""
    return 2 * all_reduce_s(inner, size, near) + all_reduce_s(outer, size, far)
