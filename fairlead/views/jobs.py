"""Response models for jobs, nodes, tenants, tokens, events and usage."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class View(BaseModel):
    """Base of all response models. Unknown fields are ignored, so that newer servers may add some."""

    # Built on first use, so that a command pays only for the models it reads.
    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class ReasonView(View):
    """A machine-readable code and a text for a state or decision."""

    code: str
    text: str
    facts: dict[str, Any] = Field(default_factory=dict)


class MemberView(View):
    worker: str
    rank: int
    node: str


class PlanView(View):
    """The parallel plan of a generation, its reason and its predicted cost."""

    id: str
    reason: str
    chosen: str = "default"  # planner, asked (by the spec), repeated (rerun) or default
    workers_used: int = 1
    step_s: float | None = None  # predicted; None: the model is unknown
    measured_step_s: float | None = None
    memory_bytes: int | None = None  # predicted, of the largest worker
    bottleneck: str | None = None
    candidates: list[
        dict[str, Any]
    ] = []  # rows of ``fairlead plan``, the chosen one first; only in a job's generations


class GenerationView(View):
    """One generation of a gang: members, reason, times, outcome and plan."""

    number: int
    phase: str
    members: list[MemberView]
    reason: ReasonView
    created_s: float
    running_s: float | None = None
    ended_s: float | None = None
    outcome: str | None = None
    plan: PlanView | None = None  # None: a command, or before the rendezvous


class PromiseView(View):
    """Whether a job's SLA can be met, as predicted now."""

    kept: bool | None = None  # None: the job's duration is unknown
    earliest_deadline_s: float | None = None  # the earliest deadline that could be met
    gang: int | None = None  # fewest workers that meet the deadline
    reason: ReasonView


class JobView(View):
    """The present state of a job. Times are seconds since the epoch."""

    id: str
    name: str
    tenant: str
    state: str  # queued, starting, running, stopping, succeeded, failed, cancelled
    labels: dict[str, str] = Field(default_factory=dict)
    priority: int = 0
    workers: int = 0  # at present
    min_workers: int = 1
    max_workers: int = 1
    nodes: list[str] = Field(default_factory=list)
    generation: int = 0
    submitted_s: float
    submitted_by: str
    started_s: float | None = None
    finished_s: float | None = None
    expected_start_s: float | None = None
    sla: dict[str, Any] = Field(default_factory=dict)
    sla_met: bool | None = None  # None: no SLA, or not decided yet
    step: int = 0
    total_steps: int = 0
    epoch: int = 0
    loss: float | None = None
    samples_per_s: float = 0.0
    recoveries: int = 0
    preemptions: int = 0
    resizes: int = 0
    recovery_s: float | None = None  # mean time from a loss to the next running generation
    reason: ReasonView | None = None  # why it waits, or runs on its present devices
    message: str | None = None  # why it failed
    metrics: dict[str, float | None] = Field(default_factory=dict)  # final metrics; None: not a number
    metrics_left_out: int = 0  # more metrics than listed; the job's own view and result have all
    promise: PromiseView | None = None  # at submission, with an SLA
    plan: PlanView | None = None  # of the running generation


class JobDetail(JobView):
    """One job with its spec and its history."""

    spec: dict[str, Any] = Field(default_factory=dict)
    generations: list[GenerationView] = Field(default_factory=list)


class Page(View):
    """One page of jobs; ``next`` opens the following one."""

    items: list[JobView]
    next: str | None = None
    total: int = 0


class CancelledView(View):
    """The outcome of cancelling many jobs."""

    cancelled: int  # jobs that were cancelled or are stopping
    more: bool = False  # more jobs match than one transaction takes: repeat the request
    jobs: list[str] = Field(default_factory=list)  # the first ids
    dry_run: bool = False  # only counted


class DryRun(View):
    """Whether a job would be admitted, where it would run, and when it would start."""

    admitted: bool
    reason: ReasonView
    nodes: list[str] = Field(default_factory=list)
    expected_start_s: float | None = None
    expected_finish_s: float | None = None  # None: its duration is unknown
    promise: PromiseView | None = None  # None: no SLA


class Why(View):
    """Why a job waits, runs on its present devices or ended."""

    job: JobView
    reason: ReasonView
    unblocks: list[str] = Field(default_factory=list)  # changes that would let it start
    ahead: list[str] = Field(default_factory=list)
    expected_start_s: float | None = None
    expected_finish_s: float | None = None  # with a forecast; None: it is not known how long it takes
    promise: PromiseView | None = None  # None: no SLA, or no forecast was asked for
    unforeseen: str | None = None  # why a requested forecast is missing
    profile: dict[str, Any] = Field(default_factory=dict)  # kind of workload and resources of a worker
    generations: list[GenerationView] = Field(default_factory=list)


class ResultView(View):
    """A job's result: metrics, files and figures."""

    job: str
    state: str
    metrics: dict[str, float | None] = Field(default_factory=dict)
    artifacts: list[str] = Field(default_factory=list)
    figures: dict[str, float | None] = Field(default_factory=dict)  # TT, RU, TP, FI, FRT, SSR
    spec: dict[str, Any] = Field(default_factory=dict)
    message: str | None = None
    plan: PlanView | None = None  # of its last generation


class MetricsView(View):
    """Metrics per step, ready for a data frame."""

    job: str
    steps: list[dict[str, Any]]  # numbers; null for NaN
    batch_size: int = 0  # samples per step of the whole gang; 0: unknown


class SlotView(View):
    """A device in use. Its user is visible only to admins and its own tenant."""

    device: int
    job: str | None = None
    tenant: str | None = None
    worker: str | None = None


class NodeView(View):
    name: str
    state: str
    device_type: str
    devices: int
    devices_used: int
    cpu: float
    memory_bytes: int
    speed: float
    cpu_fraction: float | None = None
    memory_used_bytes: int | None = None
    isolation: str = "none"
    jobs: list[str] = Field(default_factory=list)
    warm: bool = False
    slots: list[SlotView] = Field(default_factory=list)  # devices in use
    temperature_c: float | None = None  # None: not measured
    power_w: float | None = None
    grid_trouble: str = ""  # present or recent problem of its data grid
    places: list[str] = Field(default_factory=list)  # its zone, rack and labels, for placement


class SpendingView(View):
    """A tenant's use of its budget in the present period (UTC)."""

    device_hours: float  # the budget
    per: str  # day, week or month
    used_hours: float
    since_s: float
    until_s: float  # start of the next period
    used_up: bool = False  # new jobs are refused and queued jobs wait


class PersonView(View):
    """A user with unfinished jobs; users of a tenant get equal parts of its devices."""

    user: str  # the token's id
    user_label: str | None = None  # the token's label, if visible
    devices: int = 0
    running: int = 0
    queued: int = 0


class TenantView(View):
    name: str
    weight: float
    quota: int | None = None
    sla: dict[str, Any] = Field(default_factory=dict)
    entitlement: float = 0.0  # devices it is entitled to now
    devices: int = 0  # devices in use
    running: int = 0
    queued: int = 0
    device_s: float = 0.0  # device time used, from the ledger
    policy: dict[str, Any] = Field(default_factory=dict)
    budget: dict[str, Any] = Field(default_factory=dict)
    spending: SpendingView | None = None  # None: it has no budget
    created_s: float | None = None
    parent: str | None = None  # parent tenant, whose share it divides with its siblings
    guarantee: dict[str, int] = Field(default_factory=dict)  # guaranteed devices by type
    most: dict[str, int] = Field(default_factory=dict)  # maximum devices by type
    share: float = 0.0  # its devices when every tenant is busy
    devices_below: int = 0  # in use by its child tenants; entitlement and share include them
    borrowed: float = 0.0  # devices in use beyond the share, with children; negative: lent to others
    people: list[PersonView] = Field(default_factory=list)  # users with unfinished jobs


class StateView(View):
    """The scheduler's present state, for simulation elsewhere."""

    state: dict[str, Any]  # scheduling.state.ClusterState; its memory holds only what tenants are owed
    left: dict[str, float] = Field(default_factory=dict)  # job -> expected remaining work in its own units
    guessed: list[str] = Field(default_factory=list)  # jobs whose remaining work is only a guess


class EventView(View):
    id: int
    time_s: float
    kind: str
    text: str
    tenant: str | None = None
    job: str | None = None
    node: str | None = None
    facts: dict[str, Any] = Field(default_factory=dict)


class TokenView(View):
    id: str
    tenant: str | None
    role: str
    label: str
    created_s: float
    expires_s: float | None = None
    revoked_s: float | None = None
    used_s: float | None = None  # last use, to about a minute


class SecretView(View):
    """A secret, without its value."""

    name: str
    tenant: str
    changed_s: float
    changed_by: str


class NewToken(TokenView):
    """A new token; its secret is shown only here."""

    token: str


class NewTenant(View):
    tenant: TenantView
    token: NewToken


class WhoAmI(View):
    token: str  # id
    role: str
    tenant: str | None
    version: str


class AuditView(View):
    id: int
    time_s: float
    actor: str
    action: str
    target: str
    detail: dict[str, Any] = Field(default_factory=dict)
    tenant: str | None = None  # the affected tenant; None: the platform
    actor_label: str | None = None  # the token's label, if visible


class UsageLine(View):
    """Usage of one combination of keys."""

    keys: dict[str, str]  # the grouping, such as tenant, user, job
    device_hours: float
    cpu_hours: float
    jobs: int
    user_label: str | None = None  # the token's label, if visible


class UsageView(View):
    """Usage of a period, from the ledger; most device time first."""

    since_s: float
    until_s: float
    by: list[str]
    lines: list[UsageLine]
    total: UsageLine
    groups: int  # number of lines without the limit


class LogLine(View):
    worker: str
    text: str
