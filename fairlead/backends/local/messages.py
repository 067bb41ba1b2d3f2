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


class Start(msgspec.Struct, tag="start", frozen=True):
    """Fork a worker; the packet carries its channel, a file with its Birth and the pipe for its output."""

    key: str


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


class Ended(msgspec.Struct, tag="ended", frozen=True):
    key: str
    code: int | None
    signal: int | None
    out_of_memory: bool = False
    problem: str | None = None  # it could not even be forked


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


HostRequest = StartNode | Supply | Shutdown
