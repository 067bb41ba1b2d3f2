"""The seam below the control plane: what every engine that runs gangs must be able to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from fairlead import wire
from fairlead.cluster import Gang, Node


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do by itself, so that the control plane does the rest."""

    name: str
    isolation: str  # none, user, sandbox
    detection_s: float  # how long a dead node goes unseen at the most
    one_machine: bool = False  # all nodes are on the control plane's own machine, and see its files
    isolation_chosen: bool = False  # the operator asked for less than a sandbox, knowing what it means


@dataclass(frozen=True, slots=True)
class NotStarted:
    """A node refused its part of a gang. The other nodes may have started theirs."""

    job: str
    generation: int
    why: str
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    nodes: Sequence[Node]


class NodeAction(StrEnum):
    START = "start"  # bring a lost node back
    FENCE = "fence"  # make sure nothing of a lost node lives on
    STOP = "stop"
    SLEEP = "sleep"  # save power, if nothing runs there; it is woken on demand
    WAKE = "wake"


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node is reachable; these workers are already on it (adoption after a restart)."""

    node: str
    incarnation: str
    workers: Sequence[wire.WorkerStatus]
    sequence: int = 0  # events up to this one are already reflected in the workers' phases
    woken_in_s: float | None = None  # of one that slept: how long it took to wake it


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node and all that ran on it is gone; it has been fenced before this was said."""

    node: str
    incarnation: str
    why: str


@dataclass(frozen=True, slots=True)
class NodeSlept:
    """A node sleeps, as it was told to: nothing ran there, and nothing can before it is woken."""

    node: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """Something a worker said or suffered, exactly once if acknowledged after it was stored."""

    node: str
    incarnation: str
    sequence: int
    time_s: float  # by the leader's clock, from the event's age at delivery
    job: str
    worker: str
    body: wire.FromWorker | wire.Exited


@dataclass(frozen=True, slots=True)
class NodeTelemetry:
    node: str
    body: wire.Telemetry


NodeChange = NodeJoined | NodeSlept | NodeLost
BackendEvent = NodeChange | WorkerEvent | NodeTelemetry


@dataclass(frozen=True, slots=True)
class LogChunk:
    worker: str
    text: str  # bytes that are no text as surrogates (``surrogateescape``)
    offset: int  # where the next read of this worker's log goes on


LogCursor = Mapping[str, int]  # worker -> offset


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """How the members of a gang are started: alike but for what the environment says per worker."""

    worker: wire.WorkerSpec
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # variables that no log may show


class Backend(Protocol):
    """Where gangs run. The control plane decides; a backend only carries out.

    Every command carries the epoch of the leader that gave it; one of an older leader raises ``LostLeadership``.
    Commands are idempotent: after a crash the control plane gives them again, and also after a ``FairleadError``, which
    says that a node may not have heard it. To a node that is lost a command does nothing. A command goes to all nodes
    concerned at once, to each with a deadline of its own, and to no others.
    """

    capabilities: Capabilities

    async def open(self, epoch: int) -> None:
        """Start or find the nodes and take command with this epoch. Events begin with a NodeJoined per node."""

    async def close(self) -> None:
        """Let go of the nodes; what runs goes on running."""

    async def inventory(self) -> Inventory:
        """The nodes that exist, lost ones included, with their whole capacity."""

    async def start(self, gang: Gang, order: LaunchOrder, within_s: float) -> NotStarted | None:
        """Hold the device of every member and start it, unless it is alive already. They say Ready when they are.

        A node that has no room is asked again until the time is over; then it is named, and the caller releases the
        members that other nodes have started.
        """

    async def tell(self, job: str, workers: Mapping[str, str], message: wire.ToWorker) -> None:
        """Pass a message to each of these workers (id -> node) that is alive."""

    async def stop(self, job: str, workers: Mapping[str, str], grace_s: float) -> None:
        """End these workers (id -> node), by force when the grace is over. Each end arrives as an Exited event."""

    async def release(self, job: str, workers: Mapping[str, str], *, forget_memory: bool = False) -> None:
        """Give the devices of these workers (id -> node) back; kills what still lives."""

    async def forget(self, job: str, node: str) -> None:
        """Drop what a job that has ended left in the memory of a node where it has no workers."""

    async def discard(self, tenant: str, labels: Sequence[str], node: str) -> None:
        """Drop the blocks of these labels from the memory of a node, unless somebody has them open."""

    def acknowledge(self, node: str, incarnation: str, sequence: int) -> None:
        """Events of this node up to this one are stored. Waits for no answer: the next one makes up for a lost one."""

    async def node(self, name: str, action: NodeAction) -> None:
        """Start, fence or stop one node; let it sleep, if it is empty, or wake it: NodeSlept or NodeJoined follow."""

    def events(self) -> AsyncIterator[BackendEvent]:
        """All that happens, in order per node; what was not acknowledged before a restart comes again."""

    async def logs(
        self, job: str, after: LogCursor, limit_bytes: int = 1 << 20, worker: str | None = None
    ) -> list[LogChunk]:
        """What the workers of a job, or one of them, wrote since the cursor."""

    async def last_lines(
        self, job: str, lines: int, after: LogCursor, worker: str | None = None, *, whole: bool
    ) -> tuple[LogCursor, LogCursor]:
        """Where the last lines begin, none before the cursor, and where they end; whole: only those that have ended."""

    def facts(self) -> Mapping[str, Any]:
        """What ``fairlead nodes`` shows of each node beyond its capacity: state, isolation, warm, load."""
