"""Records of running nodes on disk, by which a new leader adopts or fences them."""

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
    sandbox: Process | None = None  # its first process; all others in it end with that one


class NodeRecord(msgspec.Struct, frozen=True):
    """One node manager and the processes it has started."""

    node: str
    incarnation: str
    epoch: int
    process: Process
    capacity: dict[str, float]
    fork_server: Process | None = None
    version: int = 0  # of cgroups
    isolation: str = ""  # the level in force; empty in old records
    groups: list[str] = []
    workers: dict[str, WorkerRecord] = {}


class HostRecord(Process, frozen=True):
    """The running host, its protocol and the code that it forks."""

    protocol: int = 1
    build: str = ""  # digest of its code; empty in old records

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
    """Remove the files of a node that is gone, including a half-written record."""
    for path in (socket_path(home, node), record_path(home, node), record_path(home, node).with_suffix(".new")):
        path.unlink(missing_ok=True)


def write_record(home: Home, record: NodeRecord) -> None:
    """Replace the record atomically."""
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
    """Records of all nodes that were started and not cleaned up."""
    names = sorted(path.stem for path in home.run.glob("*.json") if path.name != "nodes.json")
    return [record for name in names if (record := read_record(home, name)) is not None]


def living_nodes(home: Home) -> list[NodeRecord]:
    return [record for record in records(home) if processes.alive(record.process)]


def isolation(level: str, version: int | None) -> str:
    """Isolation and limits as text for users; ``version`` of cgroups, None while unknown."""
    level = level or ("user" if os.geteuid() == 0 else "none")
    if version is None:
        return level
    return f"{level}, cgroups v{version}" if version else f"{level}, affinity"
