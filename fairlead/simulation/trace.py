"""Defines traces: jobs with their arrivals, and models of their true speeds, which policies see only in part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from fairlead.cluster import Node
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.state import TenantState


class JobModel(Protocol):
    """The true behaviour of a job. Work is in units of the trace: steps, epochs, progress, seconds."""

    @property
    def work(self) -> float:
        """Units from start to end."""

    def rate(self, done: float, device_type: str, spread: Sequence[int]) -> float:
        """Units per second after this much work, on a gang with so many devices per node."""

    def changes_at(self, done: float) -> float:
        """Work done at the next change of the rate by itself (batch size, phase)."""

    def curve(self, done: float) -> SpeedCurve:
        """The curve that a profile would show now; the same object while nothing changed."""

    def declared_work_left(self, done: float) -> float:
        """Work left in units of the present curve, as the job would declare it."""


class RunOutcome(NamedTuple):
    """The result of running a gang for some time."""

    took_s: float  # until it stopped: the whole time, or less when it was done earlier
    service_s: float  # of that, what counts as having been served


class Course(Protocol):
    """The progress of one job in a simulation."""

    @property
    def finished(self) -> bool: ...

    @property
    def done(self) -> float:
        """Units of work so far."""

    def run(self, seconds: float, device_type: str, spread: Sequence[int], restart_s: float) -> RunOutcome:
        """Train for at most so many seconds, of which some are lost to a restart."""

    def seconds_left(self, device_type: str, spread: Sequence[int]) -> float:
        """Training time left on this gang; infinite where it cannot run."""

    def lose(self, work: float) -> None:
        """Lose so many units of work."""

    def curve(self) -> SpeedCurve: ...

    def work_left(self) -> float:
        """Work left in units of the present curve, as the job would declare it."""


@runtime_checkable
class Stepped(Protocol):
    """A model with its own progress rules, such as whole steps or rates that depend on the past."""

    def begin(self) -> Course: ...


class Clock(StrEnum):
    """When decisions are made."""

    ROUNDS = "rounds"  # on a fixed grid
    LAST = "last"  # a round ends when its last gang has stopped, after at most the round's length (Gavel, Shockwave)
    EVENTS = "events"  # at arrivals and completions, and after at most the round's length
    SLOTS = "slots"  # at arrivals, completions and wishes, but not before the round's length is over (ElasticFlow)


@dataclass(frozen=True, slots=True)
class TraceJob:
    id: str
    arrival_s: float
    model: JobModel
    min_workers: int
    max_workers: int  # as wide as it may grow; equal to the minimum for a rigid gang
    tenant: str = "all"
    weight: float = 1.0
    priority: int = 0
    deadline_s: float | None = None  # absolute
    exclusive_s: float = 0.0  # alone on the best devices with the gang it asked for: the T of finish-time fairness
    restart_cost_s: float | None = None  # None: the simulation's default
    restart_costs: Mapping[int, float] | None = None  # by the size of the new gang, where it depends on that
    first_start_s: float | None = None  # what its first start costs, where that is less than another one
    facts: Mapping[str, Any] = field(default_factory=dict)
    demand: Mapping[str, float] = field(default_factory=dict)  # per worker, besides its device
    starts_over: bool = False  # whoever stops it throws away all that it has done
    start_by_s: float | None = None  # absolute: the SLA class of a job that waits
    person: str = ""  # who handed it in
    only: frozenset[str] = frozenset()  # zones, racks, nodes or labels outside of which it may not run
    near: frozenset[str] = frozenset()  # where its data lies
    asked: int | None = None  # the gang its user asked for, when it may also run on others
    asked_model: JobModel | None = None  # how it behaves when nothing is adapted for it, where that differs

    def rigid(self) -> TraceJob:
        """The job as its user asked for it, at one gang size and batch size: for policies without elasticity."""
        gang = self.min_workers if self.asked is None else self.asked
        return replace(self, min_workers=gang, max_workers=gang, model=self.asked_model or self.model)


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace as read from a file, with the settings of its original simulator as defaults."""

    name: str
    format: str
    jobs: Sequence[TraceJob]
    round_s: float
    restart_cost_s: float
    nodes: Sequence[Node] = ()  # the cluster it was made for, when the trace says so
    clock: Clock = Clock.ROUNDS
    grid_s: float | None = None  # when the first of its rounds begins; None: with the first arrival
    pause_s: float = 0.0  # what every gang loses at every decision, changed or not
    first_round_free: bool = False  # nothing ran before the first round, and its simulator charges no restart there
    settings: Mapping[str, Any] = field(default_factory=dict)  # of its own simulator, for policies that want the same
    tenants: Sequence[TenantState] = ()  # with their weights, when the trace says so
    window_s: float = 86_400.0  # over which tenants' shares are looked at
    begins_s: float | None = None  # who arrived before waits or sits already; None: it begins with the first arrival
    seated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # nodes that jobs sit on as it begins
    memory: Mapping[str, Any] = field(default_factory=dict)  # what a policy remembers as it begins
    left_out: int = 0  # rows of the file that are no jobs: they had no devices, or never ran
    sleep_after_s: float | None = None  # nodes that were idle for so long may sleep, unless the settings say otherwise

    def rigid(self) -> Trace:
        """The trace for a policy that cannot change gang sizes."""
        return replace(self, jobs=tuple(job.rigid() for job in self.jobs))
