"""Defines the values that the scheduler reads and returns: no clock, no I/O, so that every decision can be replayed.

Decisions are structs, not dataclasses: every round makes one with a reason for every waiting job, and a struct takes a
twentieth of the time to make. Decisions are never part of a reference cycle, so the garbage collector skips them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from fairlead.cluster import DEVICE, Node, Resources, add
from fairlead.scheduling.curves import SpeedCurve

if TYPE_CHECKING:
    from fairlead.scheduling.reasons import Explanation


@dataclass(frozen=True, slots=True)
class SpentBudget:
    """A budget that is used up: no job of its tenant starts or grows until the next period begins."""

    device_hours: float
    per: str  # day, week or month
    again_s: float  # when the next period begins
    of: str = ""  # the tenant above that owns the budget; empty: the tenant itself


MIN_WEIGHT = 1e-9
"""The smallest weight: such a tenant or job gets only what no other wants."""


@dataclass(frozen=True, slots=True)
class TenantState:
    """One tenant as the policy sees it."""

    name: str
    weight: float = 1.0
    quota: int | None = None  # devices at the same time
    attained_device_s: float = 0.0  # from the usage ledger, decayed
    spent: SpentBudget | None = None  # None: no budget, or not used up
    parent: str | None = None  # the tenant above it, whose share it divides; None: top level
    guarantee: Mapping[str, float] = field(default_factory=dict)  # devices by type, whenever its jobs want them
    most: Mapping[str, float] = field(default_factory=dict)  # devices by type that it never exceeds

    def __post_init__(self) -> None:
        if not self.weight >= MIN_WEIGHT:  # shares are divided by it
            object.__setattr__(self, "weight", MIN_WEIGHT)


@dataclass(frozen=True, slots=True)
class JobState:
    """One unfinished job: waiting if it has no seats, running otherwise."""

    id: str
    tenant: str
    submitted_s: float
    min_workers: int = 1
    max_workers: int = 1
    demand: Resources = field(default_factory=dict)  # per worker, without its one device
    device_type: str | None = None
    priority: int = 0
    start_by_s: float | None = None  # SLA class
    finish_by_s: float | None = None  # SLA deadline
    seats: tuple[str, ...] = ()  # node of each living worker; empty while it waits
    since_s: float = 0.0  # when the present generation began, or when it began to wait
    elastic: bool = False  # may change its size while it runs
    broken: bool = False  # lost a worker: it needs a new generation now, even on the same seats
    frozen: bool = False  # changing its generation, or pausing after a failed one: not decided about
    speeds: Mapping[int, float] = field(default_factory=dict)  # workers -> samples per second, as measured
    remaining_samples: float | None = None
    restart_cost_s: float = 1.0  # seconds that a new generation costs it
    starts_over: bool = False  # a new generation also loses all its work: it keeps no snapshot
    curve: SpeedCurve | None = None  # units of work per second by gang; the same object while nothing changed
    work_left: float | None = None  # units of the curve, as declared; None: unknown
    work_done: float = 0.0
    weight: float = 1.0  # among the jobs of its tenant
    attained_device_s: float = 0.0  # device seconds that it has had
    ran_s: Mapping[str, float] = field(default_factory=dict)  # seconds that its gangs ran, by device type
    exclusive_s: float | None = None  # duration alone on the best devices, for the fair finish time
    facts: Mapping[str, Any] = field(default_factory=dict)  # further facts from its source, such as takes_s or class
    person: str = ""  # its submitter: the people of a tenant share its devices; empty: unknown
    only: frozenset[str] = frozenset()  # residency: zones, racks, nodes or labels outside of which it may not run
    near: frozenset[str] = frozenset()  # locality: where its data lies; a preference
    slow: tuple[str, ...] = ()  # nodes of its stragglers, the slowest first
    leaving: tuple[str, ...] = ()  # seats that it is giving up: free once its workers are gone
    interrupted_s: float | None = None  # when its gang was lost through no fault of its own; it waits since

    def __post_init__(self) -> None:
        if not self.weight >= MIN_WEIGHT:  # bids are multiplied by it, debts divided
            object.__setattr__(self, "weight", MIN_WEIGHT)

    @property
    def need(self) -> dict[str, float]:
        """Everything one worker takes."""
        return add(self.demand, {DEVICE: 1.0})


@dataclass(frozen=True, slots=True)
class Sharing:
    """Settings of the operators for fairness over time; None: the default of the config."""

    fair: float | None = None  # below this fairness index between tenants, debts are repaid sooner
    forget_s: float | None = None  # after so long, a tenant's use and debts count half


DEFAULT_SHARING = Sharing()


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Everything that a round depends on."""

    now_s: float
    nodes: Sequence[Node]
    tenants: Sequence[TenantState]
    jobs: Sequence[JobState]
    memory: Mapping[str, Any] = field(default_factory=dict)  # handed over by the last round
    round_s: float | None = None  # how long decisions stand; None: until the next event
    at_once: bool = False  # freed devices may be given away in the same round (simulator)
    sleep_after_s: float | None = None  # nodes idle for so long may sleep; None: never
    colocation: Mapping[tuple[str, str], float] | None = None  # (class, neighbour) -> speed lost, 0 to 1
    sharing: Sharing = DEFAULT_SHARING


class Reason(Struct, frozen=True, gc=False):
    """A reason: a code for programs, a sentence for people, and the facts it rests on."""

    code: str
    text: str
    facts: Mapping[str, Any] = {}


class Start(Struct, frozen=True, gc=False):
    job: str
    seats: tuple[str, ...]
    reason: Reason


class Resize(Struct, frozen=True, gc=False):
    """A new generation of a running gang: grown, shrunk, moved, or repaired after a loss."""

    job: str
    seats: tuple[str, ...]
    reason: Reason


class Preempt(Struct, frozen=True, gc=False):
    """The gang saves a snapshot, stops and returns to the queue."""

    job: str
    reason: Reason


class Hold(Struct, frozen=True, gc=False):
    """The job waits for this reason; the expected start is a forecast, not a promise."""

    job: str
    reason: Reason
    expected_start_s: float | None = None
    ahead: tuple[str, ...] = ()  # the first jobs in the queue before it


Decision = Start | Resize | Preempt | Hold


@dataclass(frozen=True, slots=True)
class Sleep:
    """This node is not needed now and may save power."""

    node: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Wake:
    """A gang was placed on this sleeping node."""

    node: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room kept for a gang that fits nowhere now: jobs that would still run at that time do not get it."""

    job: str
    at_s: float  # when it is expected to fit
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """One round: at most one decision per job, and one for every waiting job."""

    decisions: tuple[Decision, ...]
    entitlements: Mapping[str, float]  # devices per tenant
    memory: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[Sleep | Wake, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    reasons: Mapping[str, Explanation] = field(default_factory=dict, compare=False, repr=False)  # by job, live
