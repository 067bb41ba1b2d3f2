"""The cost of collectives between workers: latency and bandwidth by the factors of each algorithm (α–β)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fairlead.planning.profiles import Device, Hardware, Link

BACKEND_BYTE_FACTORS: Mapping[str, tuple[float, float]] = {"gloo": (1.15, 2.0), "nccl": (1.0, 1.0)}
"""(all-gather, reduce-scatter): bytes relative to an ideal ring. gloo scatters by reducing all (measured)."""


DIRECT_BYTES = 1 << 18
"""Up to this many bytes sent, gloo ranks send directly to all others (fairlead/training/parallel/direct_sums.py)."""

RING_MESSAGES = 4
"""Messages that gloo sends per other rank in a ring: two halves, there and back."""

QUOTA_WAIT = 0.2
"""Average wait of a message for a throttled sender, as a part of the quota's rest (measured, two to four workers)."""

STEP_MESSAGE_BYTES = 64.0
"""Size of the control message that ranks exchange at every step."""


def slowest_link(hardware: Hardware, groups: Sequence[Sequence[int]]) -> Link:
    """The link that groups see when all exchange at once: the slowest of any, shared where groups leave a node."""
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
    # A ring across nodes also passes within each: the slower link of the two counts.
    return Link(max(link.latency_s, inner.latency_s), min(link.bytes_per_s / crowding, inner.bytes_per_s))


def all_reduce_s(count: int, size: float, link: Link) -> float:
    """Seconds of an all-reduce: the faster of ring (large sizes) and tree (small sizes)."""
    if count <= 1 or size <= 0:
        return 0.0
    ring = 2 * (count - 1) * link.latency_s + 2 * (count - 1) / count * size / link.bytes_per_s
    rounds = math.ceil(math.log2(count))
    tree = 2 * rounds * link.latency_s + 2 * size / link.bytes_per_s
    return min(ring, tree)


def all_gather_s(count: int, size: float, link: Link, backend: str = "nccl") -> float:
    """Seconds of an all-gather; ``size`` is that of the gathered whole."""
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
    """Seconds of a hierarchical sum: within each inner ring, between one worker of each, and back (D4)."""
    return 2 * all_reduce_s(inner, size, near) + all_reduce_s(outer, size, far)


def is_sent_directly(count: int, size: float, device: Device) -> bool:
    return device.backend == "gloo" and (count - 1) * size <= DIRECT_BYTES


def sum_wire_s(count: int, size: float, link: Link, device: Device) -> float:
    """Wire seconds of a sum of gradients or control messages, direct or as all-reduce."""
    if count > 1 and is_sent_directly(count, size, device):
        return min(all_reduce_s(count, size, link), link.latency_s + (count - 1) * size / link.bytes_per_s)
    return all_reduce_s(count, size, link)


def ring_cpu_s(count: int, size: float, device: Device) -> float:
    """CPU seconds of each rank in a ring."""
    return RING_MESSAGES * (count - 1) * device.message_s + 2 * (count - 1) / count * size * device.byte_s


def gather_cpu_s(count: int, size: float, device: Device) -> float:
    """CPU seconds of each rank to gather ``size`` bytes from every rank."""
    return (count - 1) * (device.message_s + size * device.byte_s)


def sum_cpu_s(count: int, size: float, device: Device) -> float:
    """CPU seconds of each rank in a sum, direct or by ring."""
    if is_sent_directly(count, size, device):
        return (count - 1) * (device.message_s + size * device.byte_s)
    return ring_cpu_s(count, size, device)


def message_count(count: int, size: float, device: Device) -> int:
    """Sequential messages that each rank of a sum waits for."""
    return (1 if is_sent_directly(count, size, device) else RING_MESSAGES) * (count - 1)


def quota_wait_s(count: int, speed: float, period_s: float) -> float:
    """Seconds that ``count`` messages are late because their sender has used up its CPU quota."""
    return QUOTA_WAIT * count * max(0.0, 1 - speed) * period_s


def exchange_cost_s(
    wire_s: float, cpu_s: float, device: Device, speed: float, *, period_s: float = 0.0, busy_s: float = 0.0
) -> float:
    """Seconds that an exchange adds to a step: start-up, then the longer of wire and CPU time.

    A worker under a CPU quota gets its next ration while it waits, and then runs at full speed. So idle time is won
    back up to the rest that the quota would have forced anyway, at most one period's rest.
    """
    handling = cpu_s / speed
    idle = max(0.0, wire_s - handling)
    rest = (1 - speed) * min(period_s, busy_s + handling) if speed < 1 else 0.0
    return device.step_s / speed + handling + idle - min(idle, rest)
