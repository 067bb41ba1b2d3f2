"""What the host, the fork servers and the node managers of one machine say to each other."""

from __future__ import annotations

import msgspec


class NodeConfig(msgspec.Struct, frozen=True):
    """What one node is, as its node manager and its fork server are told at their start."""

    home: str
    tag: str  # of the home, for names outside of it
    name: str
    capacity: dict[str, float]
    device_type: str
    epoch: int
    first_core: int = 0  # where its cores begin, for machines without cgroups
    isolation: str = "user"  # sandbox, user or none: what is in force; from the control plane also auto
    protocol: int = 1  # of the node manager; a fork server of another one would not understand it


class Start(msgspec.Struct, tag="start", frozen=True):
    """Fork a worker. All that the fork server itself has to know of it: what it reads would be in every later fork.

    The packet carries the worker's channel, the pipe for its output and a file with its Birth; then, as told here, the
    packed code and the arguments of its sandbox.
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
    closed: list[str] = []  # granted folders that lie where the tenant's user does not get to by itself
    folder: str = ""  # of the job, to be attached to the sandbox; empty: it is built with it
    memory: str = ""  # the same, for its snapshots in memory
    frame: str = ""  # sandboxes of the same frame are alike before that; empty: it is like no other

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
    """The fork server is warm and belongs to this node now."""

    pid: int
    version: int  # of cgroups; 0: none
    groups: list[str]
    problem: str | None = None


class Started(msgspec.Struct, tag="started", frozen=True):
    key: str
    pid: int
    groups: list[str]
    sandbox: int = 0  # its first process, with which all in it ends


class Ended(msgspec.Struct, tag="ended", frozen=True):
    key: str
    code: int | None
    signal: int | None
    out_of_memory: bool = False
    problem: str | None = None  # it could not even be forked
    cpu_s: float = 0.0  # that it and its children used
    no_room: bool = False  # the problem was a full disk


ToForkServer = Start | Kill
FromForkServer = Hello | Started | Ended

# ---------------------------------------------------------------- to the host


class StartNode(msgspec.Struct, tag="start", frozen=True):
    node: NodeConfig


class Supply(msgspec.Struct, tag="supply", frozen=True):
    """A node manager asks for a fork server, which takes over the connection this comes on."""

    node: NodeConfig


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True):
    pass


class Done(msgspec.Struct, tag="done", frozen=True):
    problem: str | None = None
    fix: str | None = None


HostRequest = StartNode | Supply | Shutdown
