"""The values the scheduler reads and returns: no clock, no I/O, so that every decision can be replayed.

Decisions are structs, not dataclasses: every round makes one with its reason for every job that waits, and a struct
takes a twentieth of the time to make. None of them is ever part of a cycle, so the collector need not look at them.
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
    """A budget that is used up: nothing of its tenant starts or grows until the next period begins."""

    device_hours: float
    per: str  # day, week or month
    again_s: float  # when the next one begins
    of: str = ""  # the tenant above whose budget it is; empty: its own


MIN_WEIGHT = 1e-9
"""Of a tenant or a job that is to have next to nothing: what nobody else wants."""


@dataclass(frozen=True, slots=True)
class TenantState:
    """One tenant as the policy sees it."""

    name: str
    weight: float = 1.0
    quota: int | None = None  # devices at the same time
    attained_device_s: float = 0.0  # from the usage ledger, decayed
    spent: SpentBudget | None = None  # None: it has no budget, or something is left of it
    parent: str | None = None  # the tenant whose share it divides with its siblings; None: a part of the whole
    guarantee: Mapping[str, float] = field(default_factory=dict)  # devices by type that it gets whenever it wants them
    most: Mapping[str, float] = field(default_factory=dict)  # devices by type that it never exceeds

    def __post_init__(self) -> None:
        if not self.weight >= MIN_WEIGHT:  # everything is divided by it
            object.__setattr__(self, "weight", MIN_WEIGHT)


@dataclass(frozen=True, slots=True)
class JobState:
    """One job that is not finished: waiting if it has no seats, running otherwise."""

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
    settling: bool = False  # between two generations: leave it alone this round
    speeds: Mapping[int, float] = field(default_factory=dict)  # workers -> samples per second, as measured
    remaining_samples: float | None = None
    restart_cost_s: float = 1.0  # what a new generation costs it
    starts_over: bool = False  # ... and all that it has done: it keeps no snapshot that we know of
    curve: SpeedCurve | None = None  # units of work per second on any gang; the same object while nothing changed
    work_left: float | None = None  # units of the curve, as declared; None when durations are not known
    work_done: float = 0.0
    weight: float = 1.0  # of the job among its tenant's
    attained_device_s: float = 0.0  # devices times seconds that it was served
    ran_s: Mapping[str, float] = field(default_factory=dict)  # seconds that its gangs ran, by device type
    exclusive_s: float | None = None  # alone on the best devices with the gang it asked for: for the fair finish time
    facts: Mapping[str, Any] = field(default_factory=dict)  # what else its source says about it
    person: str = ""  # who handed it in: the people of a tenant share what it has; empty: nobody in particular
    only: frozenset[str] = frozenset()  # residency: zones, racks, nodes or labels outside of which it may not run
    near: frozenset[str] = frozenset()  # locality: where its data lies, so where it would rather run
    slow: tuple[str, ...] = ()  # nodes of workers that have been far too slow for long, the worst first
    leaving: tuple[str, ...] = ()  # those of its seats that it is giving up: they are free once its workers are gone
    interrupted_s: float | None = None  # waiting since its gang was lost through no fault of its own, at this time

    def __post_init__(self) -> None:
        if not self.weight >= MIN_WEIGHT:  # bids are multiplied by it, and debts divided
            object.__setattr__(self, "weight", MIN_WEIGHT)

    @property
    def need(self) -> dict[str, float]:
        """Everything one worker takes."""
        return add(self.demand, {DEVICE: 1.0})


@dataclass(frozen=True, slots=True)
class Sharing:
    """What those who run the cluster have settled about fairness over time; None: as the dials have it."""

    fair: float | None = None  # below this index between tenants, what is owed is repaid sooner
    forget_s: float | None = None  # after so long, what a tenant used and is owed counts half


DEFAULT_SHARING = Sharing()


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All that a round of decisions depends on."""

    now_s: float
    nodes: Sequence[Node]
    tenants: Sequence[TenantState]
    jobs: Sequence[JobState]
    memory: Mapping[str, Any] = field(default_factory=dict)  # what the last round wanted to see again
    round_s: float | None = None  # how long what is decided now will stand; None: until something happens
    at_once: bool = False  # devices that a decision frees may be given away in the same round
    sleep_after_s: float | None = None  # nodes that were idle for so long may be sent to sleep; None: never
    colocation: Mapping[tuple[str, str], float] | None = None  # what a class loses beside another; None: not known
    sharing: Sharing = DEFAULT_SHARING


class Reason(Struct, frozen=True, gc=False):
    """Why: a code for machines, a sentence for people, and the facts it rests on."""

    code: str
    text: str
    facts: Mapping[str, Any] = {}


class Start(Struct, frozen=True, gc=False):
    job: str
    seats: tuple[str, ...]
    reason: Reason


class Resize(Struct, frozen=True, gc=False):
    """A new generation of a running gang: grown, shrunk, moved, or mended after a loss."""

    job: str
    seats: tuple[str, ...]
    reason: Reason


class Preempt(Struct, frozen=True, gc=False):
    """Snapshot, stop, and back into the queue."""

    job: str
    reason: Reason


class Hold(Struct, frozen=True, gc=False):
    """It waits, for this reason; the expected start is a forecast, not a promise."""

    job: str
    reason: Reason
    expected_start_s: float | None = None
    ahead: tuple[str, ...] = ()  # the jobs that come first


Decision = Start | Resize | Preempt | Hold


@dataclass(frozen=True, slots=True)
class Sleep:
    """This node is not needed for now: it may save power."""

    node: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Wake:
    """A gang was seated on this node that sleeps."""

    node: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room that is kept for a gang which fits nowhere now: whoever would still be there by then stays out."""

    job: str
    at_s: float  # when it is expected to fit
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """One round: at most one decision per job, every waiting job accounted for."""

    decisions: tuple[Decision, ...]
    entitlements: Mapping[str, float]  # devices per tenant
    memory: Mapping[str, Any] = field(default_factory=dict)
    nodes: tuple[Sleep | Wake, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    reasons: Mapping[str, Explanation] = field(default_factory=dict, compare=False, repr=False)  # by job, live
