"""Predicts a job's start and end, and whether its SLA can be met."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.control.job_views import plausible_forecast, reason_view
from fairlead.errors import Refused
from fairlead.scheduling.admission import Answer
from fairlead.scheduling.bid_score import resource_score
from fairlead.scheduling.classes import DeviceShare, bottleneck, observed_signature, purpose, signature
from fairlead.scheduling.market.policy import DEFAULT_CONFIG
from fairlead.scheduling.phrases import utc_second
from fairlead.scheduling.state import ClusterState
from fairlead.specs import STORED, Sla
from fairlead.views.jobs import PromiseView

MAX_JOBS_TO_WAIT = 200
"""With more jobs than this in the cluster, a submission does not wait for a full forecast."""

PAUSE_FACTOR = 10.0
"""Pause after a promise check in a deep queue, times its duration: checks take a tenth of the time at most."""


def workload_profile(state: ClusterState, job_id: str) -> dict[str, Any]:
    """A job's kind of work: purpose, bottleneck, a worker's share of a device's resources, and resource score (RS)."""
    job = next((job for job in state.jobs if job.id == job_id), None)
    if job is None:
        return {}
    share = DeviceShare.of(node for node in state.nodes if node.schedulable)
    seen = observed_signature(job, share)
    return {
        "purpose": str(purpose(job)),
        "bound": str(bottleneck(seen)),
        "memory": seen.memory,
        "compute": seen.compute,
        "network": seen.network,
        "score": resource_score(signature(job, share), DEFAULT_CONFIG),
    }


def promise_view(answer: Answer, tenant: str | None, now_s: float) -> PromiseView | None:
    """The promise as this tenant may see it (None: unredacted); None for a job without a promise."""
    if answer.why.code == "no-promise":
        return None
    return PromiseView(
        kept=answer.kept,
        earliest_deadline_s=plausible_forecast(answer.earliest_deadline_s, now_s),
        gang=answer.gang,
        reason=reason_view(answer.why, tenant),
    )


def expectations(answer: Answer, tenant: str | None, now_s: float) -> dict[str, Any]:
    """The predicted fields of a view."""
    return {
        "expected_start_s": plausible_forecast(answer.expected_start_s, now_s),
        "expected_finish_s": plausible_forecast(answer.expected_finish_s, now_s),
        "promise": promise_view(answer, tenant, now_s),
    }


def effective_sla(spec: Sla | None, tenant: Mapping[str, Any]) -> Sla:
    """The job's SLA: its own, or else its tenant's default."""
    return spec if spec is not None else Sla.model_validate(dict(tenant), context=STORED)


def refusal(answer: Answer) -> Refused:
    """The error for a strict job whose promise cannot be kept."""
    earliest = answer.earliest_deadline_s
    instead = "" if earliest is None else f"ask for {utc_second(earliest)} or later, "
    return Refused(answer.why.text, field="sla", fix=f"{instead}or leave out sla.strict")
