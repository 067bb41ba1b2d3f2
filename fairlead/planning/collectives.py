"""What exchanges between workers cost: latency and bandwidth by the algorithm's own factors (α–β)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fairlead.planning.profiles import Device, Hardware, Link

BACKEND_BYTE_FACTORS: Mapping[str, tuple[float, float]] = {"gloo": (1.15, 2.0), "nccl": (1.0, 1.0)}
"""(all-gather, reduce-scatter): bytes against those of a good ring. gloo scatters by reducing all (measured)."""


DIRECT_BYTES = 1 << 18
"""Up to so many bytes sent, gloo's ranks send to everybody at once (fairlead/training/parallel/direct_sums.py)."""

RING_MESSAGES = 4
"""That gloo sends to each of the others in a ring: two halves, there and back."""

QUOTA_WAIT = 0.2
"""Part of a quota's rest that a message waits for its sender, on average (measured with two to four workers)."""

STEP_MESSAGE_BYTES = 64.0
"""What ranks tell each other at every step."""


def slowest_link(hardware: Hardware, groups: Sequence[Sequence[int]]) -> Link:
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
    bytes_sent = (count - 1) / count * size * BACKEND_BYTE_FACTORS.get(backend, (1.0, 1.0))[0]
    return _rounds(count) * link.latency_s + bytes_sent / link.bytes_per_s


def reduce_scatter_s(count: int, size: float, link: Link, backend: str = "nccl") -> float:
    if count <= 1 or size <= 0:
        return 0.0
    bytes_sent = (count - 1) / count * size * BACKEND_BYTE_FACTORS.get(backend, (1.0, 1.0))[1]
    return _rounds(count) * link.latency_s + bytes_sent / link.bytes_per_s


def _rounds(count: int) -> float:
    return min(count - 1, 2 * math.ceil(math.log2(count)))


def send_s(size: float, link: Link) -> float:
    return link.latency_s + size / link.bytes_per_s


def hierarchical_s(outer: int, inner: int, size: float, near: Link, far: Link) -> float:
    """Summed within each ring of neighbours, between one of each ring, and handed back (D4)."""
    return 2 * all_reduce_s(inner, size, near) + all_reduce_s(outer, size, far)


def is_sent_directly(count: int, size: float, device: Device) -> bool:
    return device.backend == "gloo" and (count - 1) * size <= DIRECT_BYTES


def sum_wire_s(count: int, size: float, link: Link, device: Device) -> float:
    """Seconds on the wire of a sum of gradients or words."""
    if count > 1 and is_sent_directly(count, size, device):
        return min(all_reduce_s(count, size, link), link.latency_s + (count - 1) * size / link.bytes_per_s)
    return all_reduce_s(count, size, link)


def ring_cpu_s(count: int, size: float, device: Device) -> float:
    """Cpu seconds of each rank in a ring."""
    return RING_MESSAGES * (count - 1) * device.message_s + 2 * (count - 1) / count * size * device.byte_s


def gather_cpu_s(count: int, size: float, device: Device) -> float:
    """Cpu seconds of each rank to gather ``size`` bytes of everybody."""
    return (count - 1) * (device.message_s + size * device.byte_s)


def sum_cpu_s(count: int, size: float, device: Device) -> float:
    """Cpu seconds of each rank in a sum, in whichever way is taken."""
    if is_sent_directly(count, size, device):
        return (count - 1) * (device.message_s + size * device.byte_s)
    return ring_cpu_s(count, size, device)


def message_count(count: int, size: float, device: Device) -> int:
    """One after the other, that each rank of a sum waits for."""
    return (1 if is_sent_directly(count, size, device) else RING_MESSAGES) * (count - 1)


def quota_wait_s(count: int, speed: float, period_s: float) -> float:
    """What so many messages are late because whoever should send them has used up its ration."""
    return QUOTA_WAIT * count * max(0.0, 1 - speed) * period_s


def exchange_cost_s(
    wire_s: float, cpu_s: float, device: Device, speed: float, *, period_s: float = 0.0, busy_s: float = 0.0
) -> float:
    """What an exchange adds to a step: the wire or the core, whichever takes longer, after it has been started.

    A worker whose speed is a quota gets its next ration while it waits: it then runs at full speed until that is used
    up. So of the idle time as much is won back as the quota would have made it rest anyway, at most a period's rest.
    """
    handling = cpu_s / speed
    idle = max(0.0, wire_s - handling)
    rest = (1 - speed) * min(period_s, busy_s + handling) if speed < 1 else 0.0
    return device.step_s / speed + handling + idle - min(idle, rest)
