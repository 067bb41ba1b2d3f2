"""What workers, node managers and the control plane say to each other."""

from __future__ import annotations

from typing import Any

import msgspec

PROTOCOL = 8
"""Of node managers, fork servers and workers, counted up when old and new ones cannot be mixed in one gang any more.

A platform is upgraded under running gangs: the leader that talks to a node manager may be newer than it. So messages
only ever gain fields, with defaults, and unknown fields are ignored; a node manager of another protocol is asked for
nothing but Status, Tell, Stop, Release, Acknowledge and Shutdown, keeps what runs, gets nothing new, and is started
anew when it is empty. So is one of the same protocol that runs older code (its build), since a fix must arrive.
1: before sandboxes; 2: with them; 3: ranks say what they computed for with their gradients; 4: plans, stages of
pipelines and the grid; 5: the grid of a node says what is wrong with it, and drops data by label; a model is looked at
before a plan that was asked for by name; 6: one Start instead of Reserve and Launch, a rendezvous named by the leader,
ages of events, no paths of the leader's machine; ends tell of full disks and lost fork servers, a training that died
tells each step where it did, and ranks that wait in vain for the next call resume their generation;
7: a worker's status says that it finished, also when its process is gone; 8: a call says where ranks on several
machines meet, and under which secret; where they meet on one machine is the agent's own business.
"""

# ---------------------------------------------------------------- to a worker


class Network(msgspec.Struct, frozen=True):
    """An address on rank 0's machine, and the secret under which the ranks of one generation meet there; in no log."""

    address: str = ""
    port: int = 0
    secret: str = ""

    def __repr__(self) -> str:
        return f"Network({self.address!r}, {self.port})"


class Join(msgspec.Struct, tag="join", frozen=True):
    """Become part of this generation. Sent alike to all members; each finds its rank by its worker id."""

    generation: int
    ranks: dict[str, int]  # worker id -> rank
    shares: list[float] = []  # part of the global batch per rank; empty: equal parts
    silence_s: float = 30.0  # how long a collective may hang before the gang counts as broken
    plan: dict[str, Any] | None = None  # how the training is spread over the ranks; None: replicas, gradients summed
    rendezvous: str = ""  # its name, drawn once per generation by the leader
    careful_from: int | None = None  # it died soon after this step before: each step from here on is told, for a while
    breaks: int = 0  # generations up to this one have lost a member: ranks that resumed one need not leave it first
    network: Network = Network()  # where ranks on several machines meet


class Leave(msgspec.Struct, tag="leave", frozen=True):
    """End this generation together at the next step. Stay alive for the next one unless told to go."""

    generation: int
    snapshot: bool = False  # the gang goes away whole: put the state where the next generation finds it
    exits: list[str] = []  # workers that end when the others go on without them; at once with a snapshot


class Quit(msgspec.Struct, tag="quit", frozen=True):
    """End now; a worker between two generations is told so when it is not needed any more."""


ToWorker = Join | Leave | Quit

# ---------------------------------------------------------------- from a worker


class Glance(msgspec.Struct, frozen=True):
    """What a few first passes of a model show, before anybody has looked at it: enough to say whether copies pay."""

    fixed_s: float  # of forward and backward on a core of their own, however small the batch
    sample_s: float  # and per sample
    kept_bytes: float  # per sample, for the backward pass


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """Code, data and model are loaded; waiting for a Join."""

    samples: int = 0  # of one epoch
    epochs: int = 0
    batch_size: int = 0
    parameters: int = 0
    resumable_step: int = 0  # newest snapshot it could start from
    plan: str = "auto"  # how the Training wants to be spread: a family of plans, or as the planner thinks best
    glance: Glance | None = None  # by the worker that is to look at the model


class Joined(msgspec.Struct, tag="joined", frozen=True):
    """Takes part in this generation, from this step on."""

    generation: int
    step: int
    resumed: bool = False  # left it before, and all its ranks agreed to go on because no call to the next one came


class Progress(msgspec.Struct, tag="progress", frozen=True):
    """Sent by every rank as a sign of life; history only by rank 0."""

    generation: int
    step: int
    total_steps: int
    epoch: int = 0
    samples_per_s: float = 0.0
    step_s: float = 0.0
    steps: list[dict[str, float]] = []  # [{"step", "time_s", "loss", "eval_accuracy"...}], each step once
    compute_s: float = 0.0  # of this rank before a synchronisation, the median of some steps; 0: not measured yet
    spread: float = 0.0  # of the ranks' compute times, as a part of their mean
    share: float = 0.0  # of the batch, that this rank takes now; 0: not measured yet
    straggler: bool = False  # far slower than its share was made for; it has been given less
    slow_s: float = 0.0  # for how long it has done less than half of what its node was said to do; 0: it does not


class Left(msgspec.Struct, tag="left", frozen=True):
    """Left the generation in order, with the state after this step in memory."""

    generation: int
    step: int
    snapshot: bool = False


class Broken(msgspec.Struct, tag="broken", frozen=True):
    """A peer is gone: this worker is alive, holds the state after this step, and waits for a Join."""

    generation: int
    step: int
    error: str = ""


class Profiled(msgspec.Struct, tag="profiled", frozen=True):
    """One worker has looked at the model, beside the training: a ``planning.ModelProfile`` as plain values."""

    profile: dict[str, Any] = {}
    seconds: float = 0.0  # of cpu time that it took
    why_not: str = ""  # the model could not be looked at


class Snapshot(msgspec.Struct, tag="snapshot", frozen=True):
    generation: int
    step: int
    where: str  # memory or disk
    size_bytes: int
    seconds: float  # until it was there
    waited_s: float = 0.0  # of them, those that the training step waited for


class Finished(msgspec.Struct, tag="finished", frozen=True):
    """Training is done and the artefacts are written (rank 0 says what they are)."""

    generation: int
    step: int
    metrics: dict[str, float] = {}
    artifacts: list[str] = []
    value: dict[str, Any] = {}  # of a stage: a reference to its result, for the next ones; opened by nobody in between
    lineage: dict[str, Any] = {}  # what it came from: data, seed, course, environment, the weights' hash
    made: dict[str, Any] = {}  # data sets that it loaded: manifest and fitted recipe of each


class Raised(msgspec.Struct, tag="raised", frozen=True):
    """User code failed; the worker ends after saying so."""

    error: str  # one line
    trace: str = ""
    permanent: bool = False  # trying again cannot help: the Training itself is refused
    missing: list[str] = []  # stages whose results were gone when this one wanted them
    no_room: bool = False  # the disk was full, and no code of the user's had begun


FromWorker = Ready | Joined | Progress | Left | Broken | Profiled | Snapshot | Finished | Raised

# ---------------------------------------------------------------- to a node manager


class WorkerSpec(msgspec.Struct, frozen=True):
    """All an agent needs to start one worker of a job: alike for all members, without paths of the leader's home."""

    job: str
    tenant: str
    uid: int | None  # None: the user of the platform (not root)
    run: str | None
    command: list[str] | None
    params: dict[str, Any]
    env: dict[str, str]
    venv: str | None
    bundle: str | None  # digest of the packed code
    cpu: float  # granted cores (threads and quota follow)
    memory_bytes: int | None = None
    silence_s: float | None = None
    seed: int = 0
    log_bytes: int = 64 << 20  # the newest of each worker's log that are kept
    network: str = "closed"  # closed: reaches its own gang and nothing else; open: what the machine reaches
    folders: list[str] = []  # granted to the tenant, to read
    files: int = 65_536  # open at once, in each process
    processes: int = 4096  # and threads
    disk_bytes: int = 10 << 30  # of the whole job, and so of each of its files
    data: dict[str, Any] = {}  # manifests of the data sets that it may read, by name
    course: list[Any] = []  # of a rerun: who took which part of the batch from which step on
    stage: dict[str, Any] = {}  # of a pipeline: its names, and whether it trains; empty: a job of its own
    pool: str = ""  # whose memory folder it shares; empty: its own job's
    looks: str = ""  # the worker that looks at the model when training has begun; empty: nobody, it is known already
    plan: str = ""  # asked for by the job itself; empty: its Training has the say
    grid_bytes: int = 0  # that its tenant may have in the memory of a node's grid; 0: it has none
    grid_encrypted: bool = False  # there, too


class Secrets(msgspec.Struct, frozen=True):
    """Variables whose values appear in no log: not even in the representation of a message."""

    values: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self.values)})"


class GridKeys(msgspec.Struct, frozen=True):
    """What the grid encrypts this tenant's blocks with, and how grid processes know each other; in no log either."""

    tenant: bytes = b""
    peers: bytes = b""

    def __repr__(self) -> str:
        return "GridKeys()"


class Start(msgspec.Struct, tag="start", frozen=True):
    """Hold the devices of these workers and start them. Workers that are there already are left alone."""

    job: str
    generation: int
    workers: dict[str, int]  # worker id -> device index
    demand: dict[str, float]  # of each worker
    worker: WorkerSpec
    environment: dict[str, dict[str, str]] = {}  # per worker: RANK, WORLD_SIZE, MASTER_ADDR, ...
    secrets: Secrets = Secrets()  # for all of them
    grid: GridKeys = GridKeys()


class Tell(msgspec.Struct, tag="tell", frozen=True):
    """Pass a message to these workers."""

    job: str
    workers: list[str]
    message: ToWorker


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """End these workers: ask (SIGTERM), and kill what is left after the grace."""

    job: str
    workers: list[str]
    grace_s: float = 0.0


class Release(msgspec.Struct, tag="release", frozen=True):
    """Forget these workers once they are gone, and give their devices back; kills what still lives."""

    job: str
    workers: list[str]
    forget_memory: bool = False  # also drop the job's snapshots in this node's memory


class Acknowledge(msgspec.Struct, tag="acknowledge", frozen=True):
    """Events up to here are stored; the node manager may forget them."""

    sequence: int


class Status(msgspec.Struct, tag="status", frozen=True):
    """Ask what is there."""


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True):
    """End all workers and then the node manager."""


class Discard(msgspec.Struct, tag="discard", frozen=True):
    """Drop a tenant's blocks of these labels, which nobody will ask for any more, from the grid of this node."""

    tenant: str
    labels: list[str]


ToNode = Start | Tell | Stop | Release | Acknowledge | Status | Shutdown | Discard


class Request(msgspec.Struct, frozen=True):
    """A command to a node manager. One with an older epoch than the newest seen is refused."""

    id: int
    epoch: int
    body: ToNode


# ---------------------------------------------------------------- from a node manager


class WorkerStatus(msgspec.Struct, frozen=True):
    job: str
    worker: str
    device: int
    generation: int  # the newest it has been part of; 0 before the first
    phase: str  # starting, ready, joined, left, broken, finished, gone
    finished_ago_s: float | None = None  # since it said that it finished, which may be stored nowhere; None: it has not


class NodeStatus(msgspec.Struct, frozen=True):
    """Who this node manager is and what it holds, in answer to Status."""

    node: str
    incarnation: str  # a node manager that was started anew has another one
    epoch: int
    capacity: dict[str, float]
    device_type: str
    workers: list[WorkerStatus]
    warm: bool = False  # the fork server is ready
    isolation: str = "none"
    sequence: int = 0  # the newest event that the phases above already reflect
    protocol: int = 1  # those that do not say are of the first
    build: str = ""  # which code it runs; those that do not say are old


class Reply(msgspec.Struct, tag="reply", frozen=True):
    """Answer to a request: a value, or the reason why not."""

    id: int
    error: str | None = None
    code: str | None = None  # stale-epoch, no-room, failed
    status: NodeStatus | None = None
    sent_s: float = 0.0  # by the node's monotonic clock, in answer to Status; 0: an older node does not say


class Exited(msgspec.Struct, tag="exited", frozen=True):
    """The process of a worker is gone."""

    code: int | None  # exit code, or None if a signal ended it
    signal: int | None = None
    cause: str | None = None  # as recovery.Cause names it: out-of-memory, disk-full, silent, stopped, no-room, ...
    detail: str = ""  # of the cause, for the tenant
    cpu_s: float = 0.0  # that all its processes used in their lives; 0: not known


class WorkerUsage(msgspec.Struct, frozen=True):
    job: str
    worker: str
    cpu_s: float  # since it started
    memory_bytes: int
    network_bytes: int = 0


class GridUsage(msgspec.Struct, frozen=True):
    """Bytes of one tenant in the grid of one node."""

    quota: int
    used: int
    pinned: int = 0
    spilled: int = 0
    evictions: int = 0


class Telemetry(msgspec.Struct, tag="telemetry", frozen=True):
    """Health and use of the node; not stored one by one and not acknowledged (sequence 0)."""

    cpu_fraction: float
    memory_bytes: int
    workers: list[WorkerUsage] = []
    warm: bool = False
    temperature_c: float | None = None  # None: the machine does not tell
    power_w: float | None = None
    resident: dict[str, int] = {}  # bytes in the grid's memory by TENANT/LABEL, such as vision/dataset/bank@3f2a9c01
    grid: dict[str, GridUsage] = {}  # by tenant
    grid_trouble: str = ""  # what is wrong with the grid of this node, or was a short time ago


class Event(msgspec.Struct, tag="event", frozen=True):
    """Something happened on a node. Kept by the node manager until it is acknowledged."""

    sequence: int
    time_s: float  # by the node's wall clock
    body: Ready | Joined | Progress | Left | Broken | Profiled | Snapshot | Finished | Raised | Exited | Telemetry
    job: str = ""
    worker: str = ""
    at_s: float = 0.0  # by the node's monotonic clock; 0: an older node does not say


FromNode = Reply | Event
