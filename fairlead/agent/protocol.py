"""The interface of an engine that runs gangs, and the events it reports to the control plane."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from fairlead import wire
from fairlead.cluster import Gang, Node


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do."""

    name: str
    isolation: str  # none, user, sandbox
    detection_s: float  # longest time until a dead node is noticed
    one_machine: bool = False  # all nodes are on the control plane's machine and see its files
    isolation_chosen: bool = False  # the operator explicitly chose less than a sandbox


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
    FENCE = "fence"  # end all processes of a lost node
    STOP = "stop"
    SLEEP = "sleep"  # save power if no worker runs there; woken on demand
    WAKE = "wake"


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node is reachable; lists workers that already run there (adoption after a restart)."""

    node: str
    incarnation: str
    workers: Sequence[wire.WorkerStatus]
    sequence: int = 0  # events up to this one are already reflected in the workers' phases
    woken_in_s: float | None = None  # duration of waking it; None if it did not sleep


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node and all its workers are gone; it was fenced before this event."""

    node: str
    incarnation: str
    why: str


@dataclass(frozen=True, slots=True)
class NodeSlept:
    """A node sleeps as requested: no worker ran there, and none can before it is woken."""

    node: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """A message or the end of a worker; delivered exactly once if acknowledged after it was stored."""

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
    text: str  # bytes that are not UTF-8 as surrogates (``surrogateescape``)
    offset: int  # where the next read of this worker's log continues


LogCursor = Mapping[str, int]  # worker -> offset


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """How to start the members of a gang: alike except for each worker's environment."""

    worker: wire.WorkerSpec
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # variables that logs must not show


class Backend(Protocol):
    """Runs gangs. The control plane decides; a backend carries out.

    Every command carries the leader's epoch; a command of an older leader raises ``LostLeadership``.
    Commands are idempotent: the control plane repeats them after a crash and after a ``FairleadError``, which means
    that a node may have missed one. A command to a lost node does nothing. A command goes to all nodes concerned at
    once, each with a deadline of its own.
    """

    capabilities: Capabilities

    async def open(self, epoch: int) -> None:
        """Start or adopt the nodes with this epoch. Events begin with a NodeJoined per node."""

    async def close(self) -> None:
        """Disconnect from the nodes; workers keep running."""

    async def inventory(self) -> Inventory:
        """All nodes, lost ones included, with their full capacity."""

    async def start(self, gang: Gang, order: LaunchOrder, within_s: float) -> NotStarted | None:
        """Reserve the device of every member and start it, unless it runs already. Each sends Ready when it is loaded.

        A node without room is asked again until the time is over; then NotStarted names it, and the caller releases the
        members that other nodes started.
        """

    async def tell(self, job: str, workers: Mapping[str, str], message: wire.ToWorker) -> None:
        """Send a message to those of these workers (id -> node) that are alive."""

    async def stop(self, job: str, workers: Mapping[str, str], grace_s: float) -> None:
        """End these workers (id -> node), killing them after the grace period. Each end arrives as an Exited event."""

    async def release(self, job: str, workers: Mapping[str, str], *, forget_memory: bool = False) -> None:
        """Free the devices of these workers (id -> node); kills workers that still live."""

    async def forget(self, job: str, node: str) -> None:
        """Drop an ended job's data from the memory of a node where it has no workers."""

    async def discard(self, tenant: str, labels: Sequence[str], node: str) -> None:
        """Drop the blocks of these labels from a node's memory, except open ones."""

    def acknowledge(self, node: str, incarnation: str, sequence: int) -> None:
        """Report that events of this node up to this one are stored. Not answered: the next one covers a lost one."""

    async def node(self, name: str, action: NodeAction) -> None:
        """Start, fence, stop or wake a node, or let an empty one sleep; NodeJoined, NodeLost or NodeSlept follows."""

    def events(self) -> AsyncIterator[BackendEvent]:
        """All events, in order per node; unacknowledged ones are repeated after a restart."""

    async def logs(
        self, job: str, after: LogCursor, limit_bytes: int = 1 << 20, worker: str | None = None
    ) -> list[LogChunk]:
        """Log output of a job's workers, or one, since the cursor."""

    async def last_lines(
        self, job: str, lines: int, after: LogCursor, worker: str | None = None, *, whole: bool
    ) -> tuple[LogCursor, LogCursor]:
        """Cursors to the begin (not before ``after``) and end of the last lines; ``whole``: complete lines only."""

    def facts(self) -> Mapping[str, Any]:
        """What ``fairlead nodes`` shows per node besides its capacity: state, isolation, warm, load."""
