"""Emulates slower cores and links for measured workers: cgroup quotas, network namespaces and tc."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from fairlead.agent.node.cgroups import Group, create_node_group, discard
from fairlead.errors import Refused

INTERFACE = "fl0"
"""Name of every worker's interface: torch finds its peers by it."""

_HEAVY = 100
"""CPU weight of the measured workers together, in ordinary processes."""

_PARTING_S = 5.0

_NEEDS_ROOT = "leave out --link and --speeds, or run it as root: sudo fairlead plan ..."


@dataclass(frozen=True, slots=True)
class Emulated:
    """Namespace, interface and control groups of one worker."""

    namespace: str | None = None
    interface: str | None = None
    cgroups: tuple[str, ...] = ()
    before: tuple[str, ...] = ()  # control groups during start-up, without a quota


@contextmanager
def emulated(
    workers: int, bytes_per_s: float | None, latency_s: float, cores: Sequence[float]
) -> Iterator[list[Emulated]]:
    """One environment per worker: a link of its own when ``bytes_per_s`` is given, a quota when ``cores`` are.

    Removed at the end of the block. Raises Refused without root, ``ip`` or ``tc``.
    """
    with ExitStack() as stack:
        groups = [stack.enter_context(_quota(f"w{at}", part)) for at, part in enumerate(cores)] or [()] * workers
        before = stack.enter_context(_quota("ready", None)) if cores else ()
        if bytes_per_s is None:
            yield [Emulated(cgroups=group, before=before) for group in groups]
            return
        names = stack.enter_context(_network(workers, bytes_per_s, latency_s))
        yield [
            Emulated(f"/var/run/netns/{name}", INTERFACE, group, before)
            for name, group in zip(names, groups, strict=True)
        ]


@contextmanager
def _quota(name: str, cores: float | None) -> Iterator[tuple[str, ...]]:
    group: Group = create_node_group(f"measure-{os.getpid()}", name, {} if cores is None else {"cpu": cores})
    if not group.folders:
        raise Refused("this user may not set cpu quotas", field="--speeds", fix=_NEEDS_ROOT)
    if cores is not None:
        group.forbid_burst()
    above = Group(group.version, tuple(folder.parent for folder in group.folders))
    above.set_cpu_weight(_HEAVY)  # or other load would take cores below the quota
    try:
        yield tuple(str(folder) for folder in group.folders)
    finally:
        deadline_s = time.monotonic() + _PARTING_S
        while not discard(group) and time.monotonic() < deadline_s:
            time.sleep(0.02)  # killed processes are still exiting


@contextmanager
def _network(workers: int, bytes_per_s: float, latency_s: float) -> Iterator[list[str]]:
    """A namespace per worker and one with a bridge between them; each link is limited in both directions."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        raise Refused("emulating links needs root, ip and tc", field="--link", fix=_NEEDS_ROOT)
    hub = f"fl{os.getpid()}-hub"
    names = [f"fl{os.getpid()}-{at}" for at in range(workers)]
    try:
        for name in (hub, *names):
            _ip("netns", "add", name)
        _ip("-n", hub, "link", "add", "br0", "type", "bridge")
        _ip("-n", hub, "link", "set", "br0", "up")
        for at, name in enumerate(names):
            _connect(hub, name, at, bytes_per_s, latency_s)
        yield names
    finally:
        for name in (hub, *names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _connect(hub: str, name: str, at: int, bytes_per_s: float, latency_s: float) -> None:
    port = f"p{at}"
    _ip("-n", name, "link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", hub)
    _ip("-n", hub, "link", "set", port, "master", "br0", "up")
    _ip("-n", name, "addr", "add", f"10.213.0.{at + 1}/24", "dev", INTERFACE)
    _ip("-n", name, "link", "set", INTERFACE, "up")
    _ip("-n", name, "link", "set", "lo", "up")
    for where, device in ((name, INTERFACE), (hub, port)):
        _slow(where, device, bytes_per_s)
    if latency_s > 0:
        _delay(name, latency_s)


def _slow(namespace: str, device: str, bytes_per_s: float) -> None:
    burst = max(64_000, int(bytes_per_s / 100))  # at least what passes within one kernel tick
    rate = f"{int(bytes_per_s * 8)}bit"
    words = ["qdisc", "add", "dev", device, "root", "handle", "1:", "tbf", "rate", rate, "burst", str(burst)]
    _run("tc", "-n", namespace, *words, "latency", "400ms")


def _delay(namespace: str, latency_s: float) -> None:
    words = ["qdisc", "add", "dev", INTERFACE, "parent", "1:", "netem", "delay", f"{int(latency_s * 1e6)}us"]
    try:
        _run("tc", "-n", namespace, *words)
    except Refused:
        raise Refused(
            "this kernel has no netem, so latency cannot be emulated", field="--link",
            fix="leave out the latency behind the comma",
        ) from None  # fmt: skip


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"code {done.returncode}"
        raise Refused(f"{' '.join(command[:4])} ...: {said}", field="--link", fix=_NEEDS_ROOT)
