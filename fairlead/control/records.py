"""The rows of the store as values: one frozen record for each kind of row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fairlead.cluster import Placement


class JobPhase(StrEnum):
    """The phase of a job; the last three are final."""

    QUEUED = "queued"
    STARTING = "starting"  # its first generation, or the first after a stop, is being brought up
    RUNNING = "running"
    STOPPING = "stopping"  # its workers are being ended; `then` says what it becomes
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.CANCELLED})


class GenerationPhase(StrEnum):
    PLANNED = "planned"  # decided and stored; newcomers are being started, the former generation may still run
    JOINING = "joining"  # the former generation has ended; members were told to meet
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Job:
    """One job. Flat, so that a round over thousands of them decodes no spec."""

    id: str
    tenant: str
    name: str
    phase: JobPhase
    submitted_s: float
    submitted_by: str  # token id
    min_workers: int
    max_workers: int
    demand: Mapping[str, float]
    device_type: str | None
    priority: int
    elastic: bool
    training: bool  # a Training, not a plain command
    retries: int
    start_by_s: float | None = None
    finish_by_s: float | None = None
    started_s: float | None = None  # first time any generation ran
    finished_s: float | None = None
    since_s: float = 0.0  # when the present phase began
    then: JobPhase | None = None  # what a stopping job becomes
    outcome: str | None = None  # of the stop under way: finished, preempted, worker-lost, failed, cancelled
    generation: int = 0  # number of the newest generation
    next_worker: int = 0  # worker ids are never used twice
    failures: int = 0  # attempts that user code ended by failing
    deaths: Sequence[Mapping[str, Any]] = ()  # of its workers, the newest last: recovery.Death as plain values
    back_off_until_s: float | None = None  # it is not started again, or does not grow, before that
    back_off_why: str | None = None
    recoveries: int = 0
    preemptions: int = 0
    resizes: int = 0
    recovery_s: float = 0.0  # sum of the times from a loss to the next running generation
    step: int = 0
    total_steps: int = 0
    epoch: int = 0
    loss: float | None = None
    samples_per_s: float = 0.0
    batch_size: int = 0
    speeds: Mapping[int, float] = field(default_factory=dict)  # workers -> samples per second
    snapshot_step: int = 0
    message: str | None = None  # why it failed, in one line
    result: Mapping[str, Any] = field(default_factory=dict)  # final metrics and artefacts
    facts: Mapping[str, Any] = field(default_factory=dict)  # what its author says about it: class, takes_s, ...

    @property
    def unanswered(self) -> frozenset[str]:
        """Workers whose death is known but has no verdict yet."""
        return frozenset(str(death["worker"]) for death in self.deaths if not death["answered"])


def stop_changes(then: JobPhase, outcome: str, message: str | None, now_s: float) -> dict[str, Any]:
    """The changes that begin to stop a job; its workers are ended afterwards."""
    changes = {"phase": JobPhase.STOPPING, "then": then, "outcome": outcome, "since_s": now_s}
    return changes if message is None else {**changes, "message": message}


OFFERED = "offered"
"""Key in a plan: how many devices the gang was offered, where the plan uses fewer."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation of a job's gang."""

    job: str
    number: int
    phase: GenerationPhase
    members: Placement
    reason_code: str
    reason: str
    created_s: float
    rendezvous: str | None = field(default=None, repr=False)  # where its ranks meet, with the secret that they share
    running_s: float | None = None
    ended_s: float | None = None
    outcome: str | None = None  # finished, resized, replanned, preempted, worker-lost, failed, cancelled, abandoned
    first_step: int | None = None
    broken_s: float | None = None  # when it lost a worker
    metered_s: float | None = None  # the usage ledger is complete up to here
    plan: Mapping[str, Any] | None = None  # what it runs and what was expected of that; None: not chosen yet, or none

    @property
    def workers(self) -> frozenset[str]:
        return frozenset(member.worker for member in self.members)

    @property
    def enough(self) -> bool:
        """True if more devices would lie idle as far as is known: the gang gave back some that it was offered."""
        return self.plan is not None and OFFERED in self.plan

    @property
    def at_work(self) -> Placement:
        """The members that the plan uses, by rank; the others are idle."""
        ranked = tuple(sorted(self.members, key=lambda member: member.rank))
        used = None if self.plan is None else self.plan.get("workers_used")
        return ranked if used is None else ranked[: int(used)]


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    weight: float
    quota: int | None
    sla: Mapping[str, Any]
    number: int  # 0, 1, 2, ...: its user id follows from it
    created_s: float
    policy: Mapping[str, Any] = field(default_factory=dict)  # what is not in it is as specs.Policy has it
    budget: Mapping[str, Any] = field(default_factory=dict)  # empty: none
    parent: str | None = None  # the tenant whose share it divides with its siblings
    guarantee: Mapping[str, int] = field(default_factory=dict)  # devices by type
    most: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownModel:
    """What is known of a model, learned from all jobs that trained it."""

    tenant: str
    key: str  # of its code and parameters
    profile: Mapping[str, Any] | None  # None: profiling it failed
    why_not: str
    seen: Mapping[str, float]  # by kind of plan: the correction that would have predicted what was measured
    banned: Mapping[str, str]  # kinds of plans that failed with it, and how
    created_s: float


class Role(StrEnum):
    ADMIN = "admin"  # the whole platform
    TENANT_ADMIN = "tenant-admin"  # its tenant: tokens and all jobs
    MEMBER = "member"  # submits and touches jobs of its tenant
    VIEWER = "viewer"  # looks only
    SCRAPER = "scraper"  # reads the metrics of the whole platform, and nothing else


@dataclass(frozen=True, slots=True)
class Secret:
    """A tenant's secret as stored: sealed."""

    tenant: str
    name: str
    ciphertext: bytes
    changed_s: float
    changed_by: str  # the token's id


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token as stored: never the secret itself."""

    id: str
    tenant: str | None  # None: the platform's own (admin)
    role: Role
    label: str
    digest: str  # sha256 of the secret, hex
    created_s: float
    expires_s: float | None = None
    revoked_s: float | None = None
    used_s: float | None = None  # last, to about a minute


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event: shown by ``fairlead events`` and streamed to followers."""

    id: int
    time_s: float
    kind: str  # job-submitted, generation-started, node-lost, ...
    text: str
    tenant: str | None = None
    job: str | None = None
    node: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """A line of the append-only ledger: devices of one kind that a job held between two times."""

    job: str
    tenant: str
    submitted_by: str
    generation: int
    node: str
    device_type: str
    devices: int
    speed: float
    from_s: float
    to_s: float
    cpu_s: float = 0.0

    @property
    def device_s(self) -> float:
        return self.devices * (self.to_s - self.from_s)


@dataclass(frozen=True, slots=True)
class UsageSum:
    """A sum of ledger lines: what a tenant (on one node, if named) held between two times."""

    tenant: str
    device_s: float
    cpu_s: float
    from_s: float
    to_s: float
    node: str = ""
    device_type: str = ""

    @property
    def devices(self) -> float:
        """The average number of devices."""
        return self.device_s / (self.to_s - self.from_s) if self.to_s > self.from_s else 0.0


@dataclass(frozen=True, slots=True)
class AuditEntry:
    id: int
    time_s: float
    actor: str  # token id
    action: str
    target: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    tenant: str | None = None  # whose things it is about; None: the platform's


@dataclass(frozen=True, slots=True)
class DataSet:
    """One version of a data set; the version is the hash of its content, and never changes."""

    tenant: str
    name: str
    version: str
    number: int  # 1, 2, 3, ...: in the order in which they came
    parent: str | None  # the version that it appends to
    rows: int
    size_bytes: int
    recipe: str  # hash of the fitted recipe; empty: none
    manifest: Mapping[str, Any]
    fitted: Mapping[str, Any] | None
    job: str  # that loaded it
    created_s: float
    created_by: str  # token id


@dataclass(frozen=True, slots=True)
class Lineage:
    """The origin of a job's result, beyond what its generations and its spec say."""

    job: str
    tenant: str
    record: Mapping[str, Any]  # what its workers said when they had finished; empty: not yet
    again: Mapping[str, Any] | None  # of a rerun: what it repeats
    created_s: float
