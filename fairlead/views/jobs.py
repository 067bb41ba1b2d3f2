"""What people read: the shapes that the API answers with and that the SDK and the CLI show."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class View(BaseModel):
    """Base of all answers. Clients ignore fields they do not know, so that servers may grow."""

    # Built when first used: a command that reads one kind of answer does not pay for all of them.
    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class ReasonView(View):
    """Why something is as it is."""

    code: str
    text: str
    facts: dict[str, Any] = Field(default_factory=dict)


class MemberView(View):
    worker: str
    rank: int
    node: str


class PlanView(View):
    """How a generation is spread over its workers, why, and what was expected of that."""

    id: str
    reason: str
    chosen: str = "default"  # by the planner, asked for by its author, or the default as nothing is known yet
    workers_used: int = 1
    step_s: float | None = None  # predicted; None: nothing is known of the model
    measured_step_s: float | None = None
    memory_bytes: int | None = None  # predicted, of the worker that needs most
    bottleneck: str | None = None
    candidates: list[dict[str, Any]] = []  # with generations of one job: rows as of ``fairlead plan``, its own first


class GenerationView(View):
    """One generation of a gang: who, where, why, from when to when."""

    number: int
    phase: str
    members: list[MemberView]
    reason: ReasonView
    created_s: float
    running_s: float | None = None
    ended_s: float | None = None
    outcome: str | None = None
    plan: PlanView | None = None  # None: a command, or it has not met yet


class PromiseView(View):
    """Whether what was promised for a job can be kept, as it looks at the moment."""

    kept: bool | None = None  # None: it is not known how long the job takes
    earliest_deadline_s: float | None = None  # that could be kept
    gang: int | None = None  # the fewest workers that keep the deadline
    reason: ReasonView


class JobView(View):
    """A job as it stands now. Times are seconds since the epoch."""

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
    sla_met: bool | None = None  # None: nothing promised, or not known yet
    step: int = 0
    total_steps: int = 0
    epoch: int = 0
    loss: float | None = None
    samples_per_s: float = 0.0
    recoveries: int = 0
    preemptions: int = 0
    resizes: int = 0
    recovery_s: float | None = None  # mean time from a loss to the next running generation
    reason: ReasonView | None = None  # why it waits, or why it runs on what it has
    message: str | None = None  # why it failed
    metrics: dict[str, float | None] = Field(default_factory=dict)  # final ones; None: it was no number
    metrics_left_out: int = 0  # by a list, which shows the first ones; the job's own view and its result have all
    promise: PromiseView | None = None  # as it is submitted, if something was promised
    plan: PlanView | None = None  # of the generation that runs


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
    """What became of a wish to cancel many jobs at once."""

    cancelled: int  # jobs that it ended, or that end now
    more: bool = False  # there were more than one transaction takes: ask again
    jobs: list[str] = Field(default_factory=list)  # ids of the first of them
    dry_run: bool = False  # only counted


class DryRun(View):
    """Whether a job would be admitted, where it would run, and when it would start."""

    admitted: bool
    reason: ReasonView
    nodes: list[str] = Field(default_factory=list)
    expected_start_s: float | None = None
    expected_finish_s: float | None = None  # None: it is not known how long it takes
    promise: PromiseView | None = None  # None: nothing was promised


class Why(View):
    """Why a job waits, runs or ended as it did, in one screen."""

    job: JobView
    reason: ReasonView
    unblocks: list[str] = Field(default_factory=list)  # what would let it start
    ahead: list[str] = Field(default_factory=list)
    expected_start_s: float | None = None
    expected_finish_s: float | None = None  # with a forecast; None: it is not known how long it takes
    promise: PromiseView | None = None  # None: nothing was promised, or no forecast was asked for
    unforeseen: str | None = None  # why there is no forecast though one was asked for
    profile: dict[str, Any] = Field(default_factory=dict)  # what kind of work it is, and what a worker takes
    generations: list[GenerationView] = Field(default_factory=list)


class ResultView(View):
    """What a job left behind, with the figures that every run reports."""

    job: str
    state: str
    metrics: dict[str, float | None] = Field(default_factory=dict)
    artifacts: list[str] = Field(default_factory=list)
    figures: dict[str, float | None] = Field(default_factory=dict)  # TT, RU, TP, FI, FRT, SSR
    spec: dict[str, Any] = Field(default_factory=dict)
    message: str | None = None
    plan: PlanView | None = None  # that it ran at last


class MetricsView(View):
    """History per step: one entry per step, ready for a data frame."""

    job: str
    steps: list[dict[str, Any]]  # numbers; null where a loss was none
    batch_size: int = 0  # samples of one step of the whole gang; 0: not known


class SlotView(View):
    """A device in use. Who uses it is told to the platform's admins and to its own tenant only."""

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
    slots: list[SlotView] = Field(default_factory=list)  # the devices in use
    temperature_c: float | None = None  # None: this machine does not tell
    power_w: float | None = None
    grid_trouble: str = ""  # what is wrong with its grid, or was a short time ago
    places: list[str] = Field(default_factory=list)  # its zone, rack and labels: what placement of a job may name


class SpendingView(View):
    """What a tenant has used of its budget in the present period, counted in UTC."""

    device_hours: float  # the budget
    per: str  # day, week or month
    used_hours: float
    since_s: float
    until_s: float  # when the next period begins
    used_up: bool = False  # new jobs are refused, and those in the queue wait


class PersonView(View):
    """Somebody who has jobs now: people of one tenant have equal parts of what it has."""

    user: str  # the token's id
    user_label: str | None = None  # what the token is for, if you may know
    devices: int = 0
    running: int = 0
    queued: int = 0


class TenantView(View):
    name: str
    weight: float
    quota: int | None = None
    sla: dict[str, Any] = Field(default_factory=dict)
    entitlement: float = 0.0  # devices it may claim now
    devices: int = 0  # devices it holds now
    running: int = 0
    queued: int = 0
    device_s: float = 0.0  # attained so far, from the ledger
    policy: dict[str, Any] = Field(default_factory=dict)
    budget: dict[str, Any] = Field(default_factory=dict)
    spending: SpendingView | None = None  # None: it has no budget
    created_s: float | None = None
    parent: str | None = None  # the tenant whose share it divides with its siblings
    guarantee: dict[str, int] = Field(default_factory=dict)  # devices by type that it gets whenever it wants them
    most: dict[str, int] = Field(default_factory=dict)  # devices of a type that it never exceeds
    share: float = 0.0  # devices that would be its part if everybody wanted all there is
    devices_below: int = 0  # held by the tenants below it; its entitlement and share include them
    borrowed: float = 0.0  # devices that it and those below hold beyond the share; negative: so many are lent
    people: list[PersonView] = Field(default_factory=list)  # who has jobs that have not ended


class StateView(View):
    """What decisions are made by now, so that it can be played forward elsewhere."""

    state: dict[str, Any]  # scheduling.state.ClusterState; of its memory, what tenants are owed
    left: dict[str, float] = Field(default_factory=dict)  # by job, the work expected to be left, in its own units
    guessed: list[str] = Field(default_factory=list)  # jobs of which that is no more than a general expectation


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
    used_s: float | None = None  # last, to about a minute


class SecretView(View):
    """A secret, without its value."""

    name: str
    tenant: str
    changed_s: float
    changed_by: str


class NewToken(TokenView):
    """A token just made: the only time its secret is shown."""

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
    tenant: str | None = None  # whose things it is about; None: the platform's
    actor_label: str | None = None  # what the token is for, if you may know


class UsageLine(View):
    """What was used under one combination of keys."""

    keys: dict[str, str]  # such as tenant, user, job: what it was broken down by
    device_hours: float
    cpu_hours: float
    jobs: int
    user_label: str | None = None  # what the user's token is for, if you may know


class UsageView(View):
    """What was used between two moments, from the ledger; most device time first."""

    since_s: float
    until_s: float
    by: list[str]
    lines: list[UsageLine]
    total: UsageLine
    groups: int  # how many lines there are; more than are shown if there was a limit


class LogLine(View):
    worker: str
    text: str
