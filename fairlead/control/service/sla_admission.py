"""What a job is told about its future: when it will start and be done, and whether its promise can be kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.control.job_views import foreseen, reason_view
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
"""With more jobs than this in the cluster, a submission does not wait until the policy has been played forward."""

PAUSE_FACTOR = 10.0
"""Between two looks at promises in a deep queue, in lengths of the first: so they take a tenth of the time."""


def workload_profile(state: ClusterState, job_id: str) -> dict[str, Any]:
    """What kind of work this is: its purpose, what bounds it, a worker's parts of what a device comes with, its RS."""
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
    """As this tenant may read it (None: as it is); None where nothing was promised."""
    if answer.why.code == "no-promise":
        return None
    return PromiseView(
        kept=answer.kept,
        earliest_deadline_s=foreseen(answer.earliest_deadline_s, now_s),
        gang=answer.gang,
        reason=reason_view(answer.why, tenant),
    )


def expectations(answer: Answer, tenant: str | None, now_s: float) -> dict[str, Any]:
    """The fields of a view that look ahead."""
    return {
        "expected_start_s": foreseen(answer.expected_start_s, now_s),
        "expected_finish_s": foreseen(answer.expected_finish_s, now_s),
        "promise": promise_view(answer, tenant, now_s),
    }


def effective_sla(spec: Sla | None, tenant: Mapping[str, Any]) -> Sla:
    """What is promised for a job: what it says, or else what its tenant has for all."""
    return spec if spec is not None else Sla.model_validate(dict(tenant), context=STORED)


def refusal(answer: Answer) -> Refused:
    """To a strict job whose promise cannot be kept."""
    earliest = answer.earliest_deadline_s
    instead = "" if earliest is None else f"ask for {utc_second(earliest)} or later, "
    return Refused(answer.why.text, field="sla", fix=f"{instead}or leave out sla.strict")
