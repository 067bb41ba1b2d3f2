"""Response models for the report, shares over time and fairness."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fairlead.views.jobs import View


class TenantReport(View):
    """A tenant's line in the report."""

    tenant: str
    weight: float
    entitlement: float  # fraction of the cluster
    share: float  # fraction of all device time used
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
    metrics_left_out: int = 0  # more metrics than listed; the job's result has all


class FairnessView(View):
    """Jain's index of tenants' recent use per entitlement, and the policy's compensation."""

    index: float  # of the last minutes, over tenants with an entitlement
    lasting: float = (
        1.0  # of the last hours, over tenants entitled to at least a device hour; compared with the threshold
    )
    threshold: float  # below it, tenants are compensated faster
    corrects: bool
    behind: dict[str, float] = Field(
        default_factory=dict
    )  # use per entitlement of tenants being compensated; own tenant only
    text: str = ""  # explanation; tenants see only their own part


class Report(View):
    """Figures of the platform, its tenants and jobs."""

    since_s: float
    until_s: float
    training_time_s: float | None = None  # TT, of all jobs together
    utilisation: float | None = None  # RU, CPU time used / CPU time of the nodes
    allocation: float | None = None  # device time in use / device time of the nodes
    throughput_per_s: float | None = None  # TP, samples per second
    fairness: float | None = None  # FI, Jain's index of share per entitlement
    recovery_s: float | None = None  # FRT, mean
    sla_satisfaction: float | None = None  # SSR
    tenants: list[TenantReport] = Field(default_factory=list)
    jobs: list[JobReport] = Field(default_factory=list)
    shares: list[dict[str, Any]] = Field(default_factory=list)  # devices per tenant over time
    energy: dict[str, Any] = Field(default_factory=dict)  # kwh, saved_kwh by sleep, asleep_s, wakes, kwh of tenants
    neighbours: list[dict[str, Any]] = Field(default_factory=list)  # class, beside, slowdown (0 to 1), seen; for admins
    balance: FairnessView | None = None  # recent fairness as tracked by the policy; None before the first round


class ShareLine(View):
    """A tenant's devices over time, one value per interval."""

    tenant: str
    weight: float
    held: list[float]
    entitlement: list[float]  # entitlement at that time, with all tenants that had jobs busy


class SharesView(View):
    """Devices in use and entitlement per tenant, in equal intervals."""

    since_s: float
    until_s: float
    step_s: float
    devices: int  # of the cluster now
    fairness: float | None = None  # FI, Jain's index over the whole time
    tenants: list[ShareLine] = Field(default_factory=list)
    balance: FairnessView | None = None  # recent fairness as tracked by the policy; None before the first round
