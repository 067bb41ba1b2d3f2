"""The messages between the host, fork servers and node managers of one machine."""

from __future__ import annotations

import msgspec


class NodeConfig(msgspec.Struct, frozen=True):
    """A node's settings, passed to its node manager and fork server at their start."""

    home: str
    tag: str  # of the home, for names outside of it
    name: str
    capacity: dict[str, float]
    device_type: str
    epoch: int
    first_core: int = 0  # of its cores, for machines without cgroups
    isolation: str = "user"  # sandbox, user or none; from the control plane also auto
    protocol: int = 1  # of the node manager; its fork server must have the same


class Start(msgspec.Struct, tag="start", frozen=True):
    """Fork a worker. Holds all that the fork server itself needs: data that it reads would be in every later fork.

    The packet carries the worker's channel, its output pipe and a file with its WorkerBootstrap; then, as flagged here,
    the code bundle and the arguments of its sandbox.
    """

    key: str
    uid: int | None
    device: int
    cpu: float
    memory_bytes: int | None
    processes: int
    files: int
    disk_bytes: int
    network: str = "closed"
    bundle: bool = False
    sandboxed: bool = False
    closed: list[str] = []  # granted folders that the tenant's user cannot reach by itself
    folder: str = ""  # of the job, mounted into the finished sandbox; empty: already part of it
    memory: str = ""  # the same for its memory folder
    frame: str = ""  # sandboxes with the same frame are interchangeable before that; empty: with none

    @property
    def job(self) -> str:
        return self.key.partition("/")[0]

    @property
    def worker(self) -> str:
        return self.key.partition("/")[2]


class Kill(msgspec.Struct, tag="kill", frozen=True):
    key: str
    signal: int


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The fork server is warm and serves this node."""

    pid: int
    version: int  # of cgroups; 0: none
    groups: list[str]
    problem: str | None = None


class Started(msgspec.Struct, tag="started", frozen=True):
    key: str
    pid: int
    groups: list[str]
    sandbox: int = 0  # pid of its first process; all others in it end with that one


class Ended(msgspec.Struct, tag="ended", frozen=True):
    key: str
    code: int | None
    signal: int | None
    out_of_memory: bool = False
    problem: str | None = None  # why it could not be forked
    cpu_s: float = 0.0  # of it and its children
    no_room: bool = False  # the problem was a full disk


ToForkServer = Start | Kill
FromForkServer = Hello | Started | Ended

# ---------------------------------------------------------------- to the host


class StartNode(msgspec.Struct, tag="start", frozen=True):
    node: NodeConfig


class Supply(msgspec.Struct, tag="supply", frozen=True):
    """A node manager asks for a fork server, which takes over this connection."""

    node: NodeConfig


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True):
    pass


class Done(msgspec.Struct, tag="done", frozen=True):
    problem: str | None = None
    fix: str | None = None


HostRequest = StartNode | Supply | Shutdown
