"""What is written down about each node that runs, so that a new leader can adopt it or make sure it is gone."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from fairlead import wire
from fairlead.agent.node import processes
from fairlead.agent.node.code_version import code_digest
from fairlead.agent.node.processes import Process
from fairlead.home import Home


class WorkerRecord(msgspec.Struct, frozen=True):
    process: Process
    job: str
    sandbox: Process | None = None  # its first process, with which all in it ends


class NodeRecord(msgspec.Struct, frozen=True):
    """One node manager and all it has started."""

    node: str
    incarnation: str
    epoch: int
    process: Process
    capacity: dict[str, float]
    fork_server: Process | None = None
    version: int = 0  # of cgroups
    isolation: str = ""  # the level in force; unknown in records of old
    groups: list[str] = []
    workers: dict[str, WorkerRecord] = {}


class HostRecord(Process, frozen=True):
    """The host that runs, what it speaks, and which code it forks."""

    protocol: int = 1
    build: str = ""  # those that do not say are old

    @classmethod
    def of_this_process(cls) -> HostRecord:
        return cls(**msgspec.structs.asdict(processes.this()), protocol=wire.PROTOCOL, build=code_digest())

    @property
    def process(self) -> Process:
        return Process(self.pid, self.started, self.boot)


def read_host(home: Home) -> HostRecord | None:
    try:
        return msgspec.json.decode((home.run / "host.pid").read_bytes(), type=HostRecord)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def record_path(home: Home, node: str) -> Path:
    return home.run / f"{node}.json"


def socket_path(home: Home, node: str) -> Path:
    return home.run / f"{node}.sock"


def forget_node(home: Home, node: str) -> None:
    """Remove the files of a node that is gone, a half-written record included."""
    for path in (socket_path(home, node), record_path(home, node), record_path(home, node).with_suffix(".new")):
        path.unlink(missing_ok=True)


def write_record(home: Home, record: NodeRecord) -> None:
    """Replace the record whole: a reader never sees half of it."""
    path = record_path(home, record.node)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(record))
    fresh.replace(path)


def read_record(home: Home, node: str) -> NodeRecord | None:
    try:
        return msgspec.json.decode(record_path(home, node).read_bytes(), type=NodeRecord)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def records(home: Home) -> list[NodeRecord]:
    """All nodes that have been started and not been cleaned up."""
    names = sorted(path.stem for path in home.run.glob("*.json") if path.name != "nodes.json")
    return [record for name in names if (record := read_record(home, name)) is not None]


def living_nodes(home: Home) -> list[NodeRecord]:
    return [record for record in records(home) if processes.alive(record.process)]


def isolation(level: str, version: int | None) -> str:
    """How tenants are kept apart and limited, for people to read; None: how they are limited is not known yet."""
    level = level or ("user" if os.geteuid() == 0 else "none")
    if version is None:
        return level
    return f"{level}, cgroups v{version}" if version else f"{level}, affinity"
