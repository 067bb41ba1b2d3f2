"""What kind of work a job is: what it is for, and what it is bound by (requirements K7 and M3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fairlead.cluster import DEVICE, Node, total
from fairlead.scheduling.curves import NEAR, SpeedCurve
from fairlead.scheduling.state import JobState


class Purpose(StrEnum):
    """What a job is for, as its author says."""

    TRAINING = "training"
    TUNING = "tuning"
    INFERENCE = "inference"
    BATCH = "batch"


_PURPOSES = {str(one): one for one in Purpose}


class Bottleneck(StrEnum):
    """What a job would need more of to be faster."""

    COMPUTE = "compute"
    MEMORY = "memory"
    NETWORK = "network"


NETWORK_BOUND = 0.4
"""A job that loses this part of its speed to the exchange between its workers is bound by the network."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a worker takes, each as a part of what its device comes with: 1 is just its share."""

    memory: float = 1.0
    compute: float = 1.0
    network: float = 0.0  # the part of its speed that is lost to exchange: 0 to 1


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What one device comes with in this cluster: memory in bytes, cores."""

    memory: float
    cpu: float

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> DeviceShare:
        whole = total(node.capacity for node in nodes)
        devices = max(whole.get(DEVICE, 0.0), 1.0)
        return cls(whole.get("memory", 0.0) / devices, whole.get("cpu", 0.0) / devices)


def purpose(job: JobState) -> Purpose:
    """What it is for; training unless it says otherwise, or says something unknown."""
    return _PURPOSES.get(str(job.facts.get("class")), Purpose.TRAINING)


def signature(job: JobState, share: DeviceShare, *, network: bool = True) -> Signature:
    """What it asked for, or else its share; more where it was seen to take more. Network from its curve, if wanted."""
    memory = _part(job.facts, job.demand, "memory", share.memory)
    compute = _part(job.facts, job.demand, "cpu", share.cpu)
    return Signature(memory, compute, _lost(job) if network else 0.0)


def observed_signature(job: JobState, share: DeviceShare) -> Signature:
    """What it was seen to take, also where that is less than it asked for; what nobody saw is as in its signature."""
    told = signature(job, share)
    memory, cpu = job.facts.get("used_memory"), job.facts.get("used_cpu")
    return Signature(
        told.memory if memory is None or share.memory <= 0 else float(memory) / share.memory,
        told.compute if cpu is None or share.cpu <= 0 else float(cpu) / share.cpu,
        told.network,
    )


def bottleneck(found: Signature) -> Bottleneck:
    """The network where much speed is lost to it; memory where it takes more than its share of that before all else."""
    if found.network >= NETWORK_BOUND:
        return Bottleneck.NETWORK
    return Bottleneck.MEMORY if found.memory > max(found.compute, 1.0) else Bottleneck.COMPUTE


def _lost(job: JobState) -> float:
    if job.curve is not None:
        return lost_to_exchange(job.curve)
    known = {size: speed for size, speed in job.speeds.items() if speed > 0 and size > 0}
    if len(known) < 2:
        return 0.0
    return max(0.0, 1.0 - known[max(known)] / max(known) / (known[min(known)] / min(known)))


def lost_to_exchange(curve: SpeedCurve) -> float:
    """The worst of: how much slower far apart than near, and how far below proportion its widest gang is."""
    worst = 1.0
    for levels in curve.speeds.values():
        near, further = levels[NEAR], levels[NEAR + 1 :]
        for far in further:
            worst = min([worst, *(b / a for a, b in zip(near, far, strict=True) if a > 0 and b > 0)])
        best = map(max, zip(*levels, strict=True))
        known = [speed / size for size, speed in zip(curve.sizes, best, strict=True) if speed > 0]
        if known:
            worst = min(worst, known[-1] / known[0])
    return max(0.0, 1.0 - worst)


def _part(measured: Mapping[str, object], asked: Mapping[str, float], name: str, share: float) -> float:
    if share <= 0:
        return 1.0
    wanted, used = asked.get(name), measured.get(f"used_{name}")
    part = 1.0 if wanted is None else wanted / share
    return max(part, float(used) / share) if isinstance(used, int | float) else part
