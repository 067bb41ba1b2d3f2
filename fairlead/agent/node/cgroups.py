"""Limits cpu, memory and processes by cgroups, version 1 or 2; elsewhere by affinity and rlimits.

Layout: ``<our own cgroup>/fairlead-<tag of the home>/<node>/<job>.<worker>``, once per controller in version 1. The
node's own group bounds the sum of its workers, so a virtual node never exceeds its capacity.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_PERIOD_US = 10_000  # short, so that the ranks of a synchronous gang are throttled in small steps
_LONG_PERIOD_US = 100_000  # the kernel takes no quota under 1 ms
_V1_CONTROLLERS = ("cpu", "cpuacct", "memory")
_V1_OPTIONAL = ("pids",)


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where this process may create groups: one folder in version 2, one per controller in version 1."""

    version: int  # 0: none
    folders: tuple[Path, ...] = ()

    def below(self, *names: str) -> Group:
        return Group(self.version, tuple(folder.joinpath(*names) for folder in self.folders))


@dataclass(frozen=True, slots=True)
class Group:
    """One control group (in version 1: the same name below each controller)."""

    version: int
    folders: tuple[Path, ...] = field(default=())

    def create(self, cpu: float | None, memory_bytes: int | None, *, tasks: int | None = None) -> None:
        """Create the group and set its limits."""
        for folder in self.folders:
            folder.mkdir(exist_ok=True)
        memory = None if memory_bytes is None else str(memory_bytes)
        self._write("pids.max", None if tasks is None else str(tasks), optional=True)
        if self.version == 2:
            self._write("cpu.max", None if cpu is None else "{} {}".format(*quota(cpu)))
            self._write("cpu.max.burst", None if cpu is None else str(quota(cpu)[0]), optional=True)
            self._write("memory.max", memory)
            self._write("memory.swap.max", None if memory is None else "0", optional=True)
        elif self.version == 1:
            if cpu is not None:
                amount, period = quota(cpu)
                self._write("cpu.cfs_period_us", str(period))
                self._write("cpu.cfs_quota_us", str(amount))
                self._write("cpu.cfs_burst_us", str(amount), optional=True)
            self._write("memory.limit_in_bytes", memory)
            self._write("memory.memsw.limit_in_bytes", memory, optional=True)

    def set_cpu_weight(self, processes: int) -> None:
        """Weigh as much as this many ordinary processes when cores are contended; a group weighs as one by default."""
        name, one = ("cpu.weight", 100) if self.version == 2 else ("cpu.shares", 1024)
        self._write(name, str(min(processes, 100) * one))

    def set_lowest_weight(self, yes: bool) -> None:
        """Set the lowest cpu weight (or the default again); does nothing for a removed group."""
        name, usual, least = ("cpu.weight", 100, 1) if self.version == 2 else ("cpu.shares", 1024, 2)
        with contextlib.suppress(FileNotFoundError):
            self._write(name, str(least if yes else usual), optional=True)

    def set_timer_slack(self, slack_s: float) -> None:
        """Let the kernel delay timers of the group's threads by this much, to fire them together; 0 resets it."""
        listing = "tasks" if self.version == 1 else "cgroup.threads"  # slack is per thread
        for thread in self._read(listing).split():
            with contextlib.suppress(OSError):  # the thread has ended, or the kernel does not allow it
                Path(f"/proc/{thread}/timerslack_ns").write_text(str(round(slack_s * 1e9)))

    def forbid_burst(self) -> None:
        """Forbid bursts: unused quota is not carried over to the next period."""
        name = "cpu.max.burst" if self.version == 2 else "cpu.cfs_burst_us"
        self._write(name, "0", optional=True)

    def delegate(self) -> None:
        """In version 2, enable controllers for sub-groups."""
        if self.version == 2:
            self._write("cgroup.subtree_control", "+cpu +memory")
            with contextlib.suppress(OSError):  # not delegated to us; optional
                self._write("cgroup.subtree_control", "+pids")

    def enter(self) -> None:
        """Move the calling process, which must have one thread, into the group."""
        door = "tasks" if self.version == 1 else "cgroup.procs"  # "tasks" avoids a machine-wide lock
        for folder in self.folders:
            (folder / door).write_text("0")

    def pids(self) -> set[int]:
        """Pids in the group and below it."""
        found: set[int] = set()
        for folder in self.folders:
            for listing in (folder / "cgroup.procs", *folder.glob("*/cgroup.procs")):
                with contextlib.suppress(OSError):
                    found.update(int(pid) for pid in listing.read_text().split())
        return found

    def kill(self) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> bool:
        """Remove the group and its sub-groups; False while a process is still in them."""
        clear = True
        for folder in self.folders:
            for path in (*(inner.parent for inner in folder.glob("*/cgroup.procs")), folder):
                try:
                    path.rmdir()
                except FileNotFoundError:
                    pass
                except OSError as error:
                    if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                        raise
                    clear = False
        return clear

    def out_of_memory(self) -> bool:
        """True when the kernel's OOM killer has killed a process of the group."""
        counters = self._read("memory.events") if self.version == 2 else self._read("memory.oom_control")
        fields = dict(line.split(" ", 1) for line in counters.splitlines() if " " in line)
        return int(fields.get("oom_kill", "0")) > 0

    def cpu_s(self) -> float:
        """Cpu time used so far, including ended processes."""
        if self.version == 1:
            return int(self._read("cpuacct.usage") or 0) / 1e9
        fields = dict(line.split() for line in self._read("cpu.stat").splitlines())
        return int(fields.get("usage_usec", 0)) / 1e6

    def tasks(self) -> int:
        """Number of processes and threads; without the pids controller, of processes only."""
        counted = self._read("pids.current")
        return int(counted) if counted else len(self.pids())

    def memory_bytes(self) -> int:
        return int(self._read("memory.usage_in_bytes" if self.version == 1 else "memory.current") or 0)

    def _file(self, name: str) -> Path | None:
        return next((folder / name for folder in self.folders if (folder / name).exists()), None)

    def _read(self, name: str) -> str:
        path = self._file(name)
        try:
            return "" if path is None else path.read_text()
        except OSError:  # removed meanwhile: the worker has just ended
            return ""

    def _write(self, name: str, value: str | None, *, optional: bool = False) -> None:
        path = self._file(name)
        if value is None or (path is None and optional):
            return
        if path is None:
            raise OSError(errno.ENOENT, f"no {name} in {', '.join(map(str, self.folders))}")
        path.write_text(value)


def quota(cpu: float) -> tuple[int, int]:
    """Quota and period in microseconds for this many cores."""
    period = _PERIOD_US if cpu * _PERIOD_US >= 1000 else _LONG_PERIOD_US
    return max(1000, round(cpu * period)), period


def detect(mountinfo: str, membership: str) -> Sequence[Hierarchy]:
    """The cgroup hierarchies of this process, preferred first, from the text of the two /proc files."""
    own = {}
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    first: dict[str, Path] = {}
    unified: list[Path] = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        root, point = left.split()[3:5]
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2":
            unified = [_folder(point, root, own.get("", "/")), Path(point)]
        elif kind == "cgroup":
            for controller in set(options.split(",")) & {*_V1_CONTROLLERS, *_V1_OPTIONAL}:
                first.setdefault(controller, _folder(point, root, own.get(controller, "/")))
    found = [Hierarchy(2, (folder,)) for folder in unified]
    if set(_V1_CONTROLLERS) <= set(first):
        found.insert(0, Hierarchy(1, tuple(sorted(set(first.values())))))
    return found


def _folder(point: str, root: str, path: str) -> Path:
    inside = path.removeprefix(root) if root != "/" else path
    folder = Path(point) / inside.lstrip("/")
    return folder if folder.is_dir() else Path(point)


def worker_group(node: Group, name: str, cpu: float, memory_bytes: int | None, tasks: int) -> Group:
    """Create a worker's group below its node's; an empty Group where the node has none."""
    group = Group(node.version, tuple(folder / name for folder in node.folders))
    group.create(cpu, memory_bytes, tasks=tasks)  # tasks bound a fork bomb to its own group
    return group


def create_node_group(tag: str, node: str, capacity: Mapping[str, float]) -> Group:
    """Create the node's group with its limits in the first usable hierarchy; version 0 when there is none."""
    hierarchies = detect(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
    for hierarchy in hierarchies:
        top, group = hierarchy.below(f"fairlead-{tag}"), hierarchy.below(f"fairlead-{tag}", node)
        try:
            if hierarchy.version == 2:  # EBUSY where processes live; the root of the tree allows it
                Group(2, hierarchy.folders).delegate()
            top.create(None, None)
            top.set_cpu_weight(len(os.sched_getaffinity(0)))
            top.delegate()
            group.create(capacity.get("cpu"), int(capacity["memory"]) if "memory" in capacity else None)
            group.delegate()
        except OSError:  # no root, no delegation, or read-only: try the next hierarchy
            discard(group)
        else:
            return group
    return Group(0)


def discard(group: Group) -> bool:
    """Kill and remove a node's group, and the home's if it was the last node; False while processes are exiting."""
    group.kill()
    try:
        clear = group.remove()
    except PermissionError:
        return False
    for folder in group.folders:
        with contextlib.suppress(OSError):  # other nodes use it
            folder.parent.rmdir()
    return clear


def limit_without_cgroup(cpu: float, memory_bytes: int | None, device: int, first_core: int) -> None:
    """Limit the calling process without cgroups: affinity to some of the node's cores, and RLIMIT_DATA."""
    cores = sorted(os.sched_getaffinity(0))
    count = min(len(cores), max(1, round(cpu)))
    os.sched_setaffinity(0, {cores[(first_core + device * count + index) % len(cores)] for index in range(count)})
    if memory_bytes is not None:  # RLIMIT_AS would count torch's mappings
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
