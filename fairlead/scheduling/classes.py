"""Classifies jobs: by their purpose, and by the resource that limits their speed (requirements K7 and M3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fairlead.cluster import DEVICE, Node, total
from fairlead.scheduling.curves import NEAR, SpeedCurve
from fairlead.scheduling.state import JobState


class Purpose(StrEnum):
    """The purpose of a job, as its author declares it."""

    TRAINING = "training"
    TUNING = "tuning"
    INFERENCE = "inference"
    BATCH = "batch"


_PURPOSES = {str(one): one for one in Purpose}


class Bottleneck(StrEnum):
    """The resource that limits a job's speed."""

    COMPUTE = "compute"
    MEMORY = "memory"
    NETWORK = "network"


NETWORK_BOUND = 0.4
"""A job that loses this part of its speed to communication between its workers is network-bound."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a worker takes, relative to its device's share of the node: 1 is just that share."""

    memory: float = 1.0
    compute: float = 1.0
    network: float = 0.0  # part of its speed lost to communication, 0 to 1


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """Memory in bytes and cores per device in this cluster."""

    memory: float
    cpu: float

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> DeviceShare:
        whole = total(node.capacity for node in nodes)
        devices = max(whole.get(DEVICE, 0.0), 1.0)
        return cls(whole.get("memory", 0.0) / devices, whole.get("cpu", 0.0) / devices)


def purpose(job: JobState) -> Purpose:
    """The declared purpose; training if none or an unknown one is declared."""
    return _PURPOSES.get(str(job.facts.get("class")), Purpose.TRAINING)


def signature(job: JobState, share: DeviceShare, *, network: bool = True) -> Signature:
    """Requested resources, or else its device's share, and more if it was measured to take more; network if wanted."""
    memory = _part(job.facts, job.demand, "memory", share.memory)
    compute = _part(job.facts, job.demand, "cpu", share.cpu)
    return Signature(memory, compute, _lost(job) if network else 0.0)


def observed_signature(job: JobState, share: DeviceShare) -> Signature:
    """Measured resources, even where they are less than requested; without a measurement as in its signature."""
    told = signature(job, share)
    memory, cpu = job.facts.get("used_memory"), job.facts.get("used_cpu")
    return Signature(
        told.memory if memory is None or share.memory <= 0 else float(memory) / share.memory,
        told.compute if cpu is None or share.cpu <= 0 else float(cpu) / share.cpu,
        told.network,
    )


def bottleneck(found: Signature) -> Bottleneck:
    """Network if much speed is lost to it; memory if it takes more than its share of it, and more than of cores."""
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
    """The larger loss of: several nodes against one, and its widest gang against proportional scaling."""
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
