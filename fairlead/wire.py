"""The messages between workers, node managers and the control plane."""

from __future__ import annotations

from typing import Any

import msgspec

PROTOCOL = 8
"""Version of node managers, fork servers and workers; increased when old and new ones can no longer share a gang.

A platform is upgraded under running gangs, so a leader may be newer than a node manager. Therefore messages only gain
fields, with defaults, and unknown fields are ignored. A node manager of another protocol gets no requests but Status,
Tell, Stop, Release, Acknowledge and Shutdown: it keeps its workers, gets no new ones, and is restarted when it is
empty. So is one of the same protocol with another build, so that fixes arrive.
1: before sandboxes; 2: with them; 3: ranks send their compute time with their gradients; 4: plans, stages of
pipelines and the grid; 5: a node's grid reports its problems and drops data by label; a model is profiled before a
plan that was requested by name; 6: one Start instead of Reserve and Launch, a rendezvous named by the leader,
ages of events, no paths of the leader's machine; Exited names full disks and lost fork servers, a training that died
reports each step near its last death, and ranks that get no Join resume their generation;
7: a worker's status includes that it finished, also after its process ended; 8: Join names where ranks on several
machines meet and their secret; on one machine the agent chooses the place.
"""

# ---------------------------------------------------------------- to a worker


class Network(msgspec.Struct, frozen=True):
    """Rendezvous of one generation: an address on rank 0's machine and the ranks' secret, which no log shows."""

    address: str = ""
    port: int = 0
    secret: str = ""

    def __repr__(self) -> str:
        return f"Network({self.address!r}, {self.port})"


class Join(msgspec.Struct, tag="join", frozen=True):
    """Join this generation. The same message for all members; each finds its rank by its worker id."""

    generation: int
    ranks: dict[str, int]  # worker id -> rank
    shares: list[float] = []  # part of the global batch per rank; empty: equal parts
    silence_s: float = 30.0  # how long a collective may hang before the gang counts as broken
    plan: dict[str, Any] | None = None  # the parallel plan; None: replicas with summed gradients
    rendezvous: str = ""  # name, drawn once per generation by the leader
    careful_from: int | None = None  # it died soon after this step before: report each step for a while
    breaks: int = 0  # generations up to this one lost a member: ranks that resumed one need not leave it
    network: Network = Network()  # where ranks on several machines meet


class Leave(msgspec.Struct, tag="leave", frozen=True):
    """End this generation together at the next step; stay alive for the next one unless listed in ``exits``."""

    generation: int
    snapshot: bool = False  # the whole gang ends: store the state for the next generation
    exits: list[str] = []  # workers that end once the others continue; at once with a snapshot


class Quit(msgspec.Struct, tag="quit", frozen=True):
    """End now; sent to a worker between two generations that is no longer needed."""


ToWorker = Join | Leave | Quit

# ---------------------------------------------------------------- from a worker


class Glance(msgspec.Struct, frozen=True):
    """Timings of a model's first passes, before it is profiled: enough to decide whether replicas pay off."""

    fixed_s: float  # of forward and backward on one core, independent of the batch
    sample_s: float  # per sample
    kept_bytes: float  # per sample, for the backward pass


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """Code, data and model are loaded; waiting for a Join."""

    samples: int = 0  # of one epoch
    epochs: int = 0
    batch_size: int = 0
    parameters: int = 0
    resumable_step: int = 0  # newest snapshot it could start from
    plan: str = "auto"  # requested by the Training: a family of plans, or auto
    glance: Glance | None = None  # by the worker that profiles the model


class Joined(msgspec.Struct, tag="joined", frozen=True):
    """The worker takes part in this generation from this step on."""

    generation: int
    step: int
    resumed: bool = False  # had left it, and all ranks agreed to continue because no Join came


class Progress(msgspec.Struct, tag="progress", frozen=True):
    """Heartbeat of every rank; only rank 0 sends ``steps``."""

    generation: int
    step: int
    total_steps: int
    epoch: int = 0
    samples_per_s: float = 0.0
    step_s: float = 0.0
    steps: list[dict[str, float]] = []  # [{"step", "time_s", "loss", "eval_accuracy"...}], each step once
    compute_s: float = 0.0  # of this rank per step before synchronisation, median; 0: not measured yet
    spread: float = 0.0  # of the ranks' compute times, as a fraction of their mean
    share: float = 0.0  # this rank's current part of the batch; 0: not measured yet
    straggler: bool = False  # far slower than planned; its share was reduced
    slow_s: float = 0.0  # how long it has run at less than half of its node's rated speed


class Left(msgspec.Struct, tag="left", frozen=True):
    """The worker left the generation in order, with the state after this step in memory."""

    generation: int
    step: int
    snapshot: bool = False


class Broken(msgspec.Struct, tag="broken", frozen=True):
    """A peer is lost: this worker holds the state after this step and waits for a Join."""

    generation: int
    step: int
    error: str = ""


class Profiled(msgspec.Struct, tag="profiled", frozen=True):
    """The model's profile, measured beside the training: a ``planning.ModelProfile`` as plain values."""

    profile: dict[str, Any] = {}
    seconds: float = 0.0  # of cpu time for profiling
    why_not: str = ""  # why the model could not be profiled


class Snapshot(msgspec.Struct, tag="snapshot", frozen=True):
    generation: int
    step: int
    where: str  # memory or disk
    size_bytes: int
    seconds: float  # until it was stored
    waited_s: float = 0.0  # part of them for which the training waited


class Finished(msgspec.Struct, tag="finished", frozen=True):
    """Training is done and the artefacts are written (listed by rank 0)."""

    generation: int
    step: int
    metrics: dict[str, float] = {}
    artifacts: list[str] = []
    value: dict[str, Any] = {}  # of a stage: a reference to its result; opaque to the platform
    lineage: dict[str, Any] = {}  # data, seed, course, environment, hash of the weights
    made: dict[str, Any] = {}  # loaded data sets: manifest and fitted recipe of each


class Raised(msgspec.Struct, tag="raised", frozen=True):
    """User code failed; the worker's last message."""

    error: str  # one line
    trace: str = ""
    permanent: bool = False  # a retry cannot help
    missing: list[str] = []  # stages whose results were lost when this one needed them
    no_room: bool = False  # the disk was full before any user code ran


FromWorker = Ready | Joined | Progress | Left | Broken | Profiled | Snapshot | Finished | Raised

# ---------------------------------------------------------------- to a node manager


class WorkerSpec(msgspec.Struct, frozen=True):
    """What an agent needs to start a worker: equal for all members of a gang, without paths of the leader's machine."""

    job: str
    tenant: str
    uid: int | None  # None: the user of the platform (not root)
    run: str | None
    command: list[str] | None
    params: dict[str, Any]
    env: dict[str, str]
    venv: str | None
    bundle: str | None  # digest of the code bundle
    cpu: float  # granted cores; sets threads and quota
    memory_bytes: int | None = None
    silence_s: float | None = None
    seed: int = 0
    log_bytes: int = 64 << 20  # kept of each worker's log, newest first
    network: str = "closed"  # closed: its own gang only; open: the machine's network
    folders: list[str] = []  # granted to the tenant, read-only
    files: int = 65_536  # open files per process
    processes: int = 4096  # including threads
    disk_bytes: int = 10 << 30  # of the whole job
    data: dict[str, Any] = {}  # manifests of its data sets, by name
    course: list[Any] = []  # of a rerun: the shares of the batch from which step on
    stage: dict[str, Any] = {}  # of a pipeline: its names, and whether it trains; empty: a job of its own
    pool: str = ""  # job whose memory folder it shares; empty: its own
    looks: str = ""  # the worker that profiles the model during training; empty: none, the profile is known
    plan: str = ""  # requested by the job; empty: the Training decides
    grid_bytes: int = 0  # quota of its tenant in a node's grid; 0: no grid
    grid_encrypted: bool = False  # encrypt blocks in memory


class Secrets(msgspec.Struct, frozen=True):
    """Variables whose values must not appear in logs; repr() shows names only."""

    values: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self.values)})"


class GridKeys(msgspec.Struct, frozen=True):
    """The key of a tenant's blocks, and that by which grid processes authenticate each other; hidden in repr()."""

    tenant: bytes = b""
    peers: bytes = b""

    def __repr__(self) -> str:
        return "GridKeys()"


class Start(msgspec.Struct, tag="start", frozen=True):
    """Reserve the devices of these workers and start them; existing workers are left alone."""

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
    """End these workers: SIGTERM, and SIGKILL after the grace period."""

    job: str
    workers: list[str]
    grace_s: float = 0.0


class Release(msgspec.Struct, tag="release", frozen=True):
    """Kill these workers if they live, forget them and free their devices."""

    job: str
    workers: list[str]
    forget_memory: bool = False  # also drop the job's snapshots in this node's memory


class Acknowledge(msgspec.Struct, tag="acknowledge", frozen=True):
    """Events up to this one are stored; the node manager may drop them."""

    sequence: int


class Status(msgspec.Struct, tag="status", frozen=True):
    """Ask for the NodeStatus."""


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True):
    """End all workers and then the node manager."""


class Discard(msgspec.Struct, tag="discard", frozen=True):
    """Drop a tenant's blocks of these labels from this node's grid."""

    tenant: str
    labels: list[str]


ToNode = Start | Tell | Stop | Release | Acknowledge | Status | Shutdown | Discard


class Request(msgspec.Struct, frozen=True):
    """A command to a node manager; refused if its epoch is older than the newest seen."""

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
    finished_ago_s: float | None = None  # since its Finished, which may not be stored yet; None: not finished


class NodeStatus(msgspec.Struct, frozen=True):
    """A node manager's identity and workers, in answer to Status."""

    node: str
    incarnation: str  # changes with every start of the node manager
    epoch: int
    capacity: dict[str, float]
    device_type: str
    workers: list[WorkerStatus]
    warm: bool = False  # the fork server is ready
    isolation: str = "none"
    sequence: int = 0  # the newest event that the phases above already reflect
    protocol: int = 1
    build: str = ""  # digest of its code; empty from old versions


class Reply(msgspec.Struct, tag="reply", frozen=True):
    """Answer to a request: a value or an error."""

    id: int
    error: str | None = None
    code: str | None = None  # stale-epoch, no-room, failed
    status: NodeStatus | None = None
    sent_s: float = 0.0  # by the node's monotonic clock, in answer to Status; 0 from older nodes


class Exited(msgspec.Struct, tag="exited", frozen=True):
    """A worker's process has ended."""

    code: int | None  # exit code, or None if a signal ended it
    signal: int | None = None
    cause: str | None = None  # as recovery.Cause names it: out-of-memory, disk-full, silent, stopped, no-room, ...
    detail: str = ""  # of the cause, for the tenant
    cpu_s: float = 0.0  # of all its processes; 0: not known


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
    """Health and usage of the node; not stored singly and not acknowledged (sequence 0)."""

    cpu_fraction: float
    memory_bytes: int
    workers: list[WorkerUsage] = []
    warm: bool = False
    temperature_c: float | None = None  # None: no sensor
    power_w: float | None = None
    resident: dict[str, int] = {}  # bytes in the grid's memory by TENANT/LABEL, such as vision/dataset/bank@3f2a9c01
    grid: dict[str, GridUsage] = {}  # by tenant
    grid_trouble: str = ""  # current or recent problem of this node's grid


class Event(msgspec.Struct, tag="event", frozen=True):
    """An event on a node; the node manager keeps it until it is acknowledged."""

    sequence: int
    time_s: float  # by the node's wall clock
    body: Ready | Joined | Progress | Left | Broken | Profiled | Snapshot | Finished | Raised | Exited | Telemetry
    job: str = ""
    worker: str = ""
    at_s: float = 0.0  # by the node's monotonic clock; 0 from older nodes


FromNode = Reply | Event
