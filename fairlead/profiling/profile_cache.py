"""Caches the measured profile of this node and corrections per model in the home folder."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from fairlead.errors import Unavailable
from fairlead.home import Home
from fairlead.planning.profiles import ALL_KINDS, Device, Hardware, Link, ModelProfile, Seat
from fairlead.profiling.device_types import known_device

DISAGREES = 1.5
"""A measured speed that differs by this factor from the profile makes the profile outdated."""

QUOTA_PERIOD_S = 0.01
"""The period of workers' CPU quotas (fairlead/agent/node/cgroups.py)."""


def node_profile(home: Home, *, again: bool = False) -> dict[str, Any]:
    """The profile of this node; measured now if there is none, or with ``again``."""
    file = home.root / "profiles" / "node.json"
    if not again and file.is_file():
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if "loop_s" in kept:  # earlier versions did not measure it
            return kept
    measured = _measured()
    _write(file, measured)
    return measured


def differs_from_profile(profile: Mapping[str, Any], flops_per_s: float) -> bool:
    """Whether telemetry shows that the node is not the one that was measured."""
    known = float(profile["flops_per_s"]["float32"])
    return not known / DISAGREES <= flops_per_s <= known * DISAGREES


def _measured() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="fairlead-profile-") as place:
        answer = Path(place) / "node.json"
        command = [sys.executable, "-m", "fairlead.profiling.node_profile", str(answer)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode or not answer.is_file():
            last_line = done.stderr.strip().rpartition("\n")[2]
            raise Unavailable(f"this node could not be measured: {last_line}", fix="run fairlead doctor")
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return found


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(content, indent=1), encoding="utf-8")
    fresh.replace(file)


def local_device(profile: Mapping[str, Any], workers: int) -> Device:
    """A worker of this node: one core and its part of the memory."""
    plain, link = known_device("cpu"), profile["links"]["gloo"]
    return Device(
        name="cpu", flops_per_s=dict(profile["flops_per_s"]), efficiency=plain.efficiency,
        memory_bytes=float(profile["memory_bytes"]) / max(1, workers), launch_s=float(profile["launch_s"]),
        memory_bytes_per_s=float(profile["memory_bytes_per_s"]), overlap=plain.overlap, backend="gloo",
        step_s=link["step_s"], message_s=link["message_s"], byte_s=link["byte_s"], loop_s=float(profile["loop_s"]),
        microbatch_s=plain.microbatch_s * float(profile["launch_s"]) / plain.launch_s, factors=plain.factors,
        gathers=plain.gathers,
    )  # fmt: skip


def local_hardware(
    profile: Mapping[str, Any], workers: int, *, link: Link | None = None, speeds: tuple[float, ...] = (),
    given: tuple[float, ...] = (),
) -> Hardware:  # fmt: skip
    """``workers`` workers of this node: with ``link`` each on a node of its own, with ``speeds`` with its own quota.

    ``given`` are the quotas themselves, in cores.
    """
    measured = profile["links"]["gloo"]
    near = Link(float(measured["latency_s"]), float(measured["bytes_per_s"]))
    cores = float(profile["cores"])
    paces = given or (quotas(speeds, workers, cores) if speeds else (1.0,) * workers)
    nodes = [f"worker-{at}" if link else "here" for at in range(workers)]
    seats = tuple(Seat("cpu", node, pace) for node, pace in zip(nodes, paces, strict=True))
    limited = bool(speeds or given)
    shared = {} if limited or link else {"here": cores}
    if link is not None and not limited:
        seats = tuple(Seat("cpu", node, min(1.0, cores / workers)) for node in nodes)
    links = (near,) if link is None else (near, Link(max(link.latency_s, near.latency_s), link.bytes_per_s))
    return Hardware(
        devices={"cpu": local_device(profile, workers)}, seats=seats, links=links, cores=shared,
        period_s=QUOTA_PERIOD_S if limited else 0.0,
    )  # fmt: skip


def quotas(speeds: tuple[float, ...], workers: int, cores: float) -> tuple[float, ...]:
    """Cores per worker in these proportions: at most one each, and no more than the node has."""
    given = (speeds * workers)[:workers]
    scale = min(1 / max(given), cores / sum(given))
    return tuple(speed * scale for speed in given)


def model_key(model: ModelProfile) -> str:
    """A hash of the layers, independent of the batch size."""
    text = "|".join(f"{layer.name}:{layer.parameters}:{layer.flops:.6g}" for layer in model.layers)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def corrections(home: Home, model: ModelProfile) -> dict[str, float]:
    """Learned corrections of this model: kind of plan -> measured / predicted."""
    file = home.root / "profiles" / f"model-{model_key(model)}.json"
    kept: dict[str, float] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return kept


def record_corrections(home: Home, model: ModelProfile, seen: Mapping[str, tuple[float, float]]) -> None:
    """Store how far predictions were off: kind of plan -> (measured / predicted, correction within that prediction).

    A common factor, such as a busy machine, is stored apart: otherwise measured kinds would look worse than others.
    Known corrections move half of the way, so that one odd run has limited effect.
    """
    if not seen:
        return
    known = corrections(home, model)
    common = median(ratio for ratio, _ in seen.values())
    known[ALL_KINDS] = known[ALL_KINDS] * common**0.5 if ALL_KINDS in known else common
    for kind, (ratio, own) in seen.items():
        known[kind] = own * (ratio / common) ** (0.5 if kind in known else 1.0)
    _write(home.root / "profiles" / f"model-{model_key(model)}.json", known)
