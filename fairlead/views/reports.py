"""What people read about the platform as a whole: its report, shares over time, and how fair they are."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fairlead.views.jobs import View


class TenantReport(View):
    """A tenant's line in the report."""

    tenant: str
    weight: float
    entitlement: float  # fraction of the cluster
    share: float  # fraction of what was used
    device_s: float
    jobs: int
    finished: int
    mean_wait_s: float | None = None
    mean_jct_s: float | None = None
    sla_satisfaction: float | None = None


class JobReport(View):
    """A job's line in the report."""

    job: str
    tenant: str
    state: str
    wait_s: float | None = None
    jct_s: float | None = None
    samples_per_s: float | None = None
    recoveries: int = 0
    recovery_s: float | None = None
    metrics: dict[str, float | None] = Field(default_factory=dict)
    metrics_left_out: int = 0  # beside the first ones; the job's result has all


class FairnessView(View):
    """Jain's index of what tenants had lately of what was due to them, and what the policy does about it."""

    index: float  # of the last minutes, over all to whom anything was due
    lasting: float = 1.0  # of the last hours, where a device hour was due: it is held against the threshold
    threshold: float  # below it, what is owed is repaid sooner
    corrects: bool
    behind: dict[str, float] = Field(default_factory=dict)  # what each had of its due, while it is repaid; own only
    text: str = ""  # what is done, and for whom; a tenant is told of itself only


class Report(View):
    """The figures of REQUIREMENTS for the platform as a whole, per tenant and per job."""

    since_s: float
    until_s: float
    training_time_s: float | None = None  # TT, of all work together
    utilisation: float | None = None  # RU, cpu time used of what the nodes have
    allocation: float | None = None  # device time held of what the nodes have
    throughput_per_s: float | None = None  # TP, samples per second
    fairness: float | None = None  # FI, Jain's index of share per entitlement
    recovery_s: float | None = None  # FRT, mean
    sla_satisfaction: float | None = None  # SSR
    tenants: list[TenantReport] = Field(default_factory=list)
    jobs: list[JobReport] = Field(default_factory=list)
    shares: list[dict[str, Any]] = Field(default_factory=list)  # devices per tenant over time, for a plot
    energy: dict[str, Any] = Field(default_factory=dict)  # kwh, saved_kwh by sleep, asleep_s, wakes, kwh of tenants
    neighbours: list[dict[str, Any]] = Field(default_factory=list)  # class, beside, slowdown (0 to 1), seen; for admins
    balance: FairnessView | None = None  # fairness as the policy keeps it, continuously; None before the first round


class ShareLine(View):
    """A tenant's devices over time, one value per interval."""

    tenant: str
    weight: float
    held: list[float]
    entitlement: list[float]  # what it could claim then, had every tenant with jobs wanted all


class SharesView(View):
    """Who held how much, against what each was entitled to, in evenly long intervals."""

    since_s: float
    until_s: float
    step_s: float
    devices: int  # of the cluster now
    fairness: float | None = None  # FI, Jain's index over the whole time
    tenants: list[ShareLine] = Field(default_factory=list)
    balance: FairnessView | None = None  # fairness as the policy keeps it, continuously; None before the first round
