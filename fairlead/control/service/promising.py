"""What a job is told about its future: when it will start and be done, and whether its promise can be kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from fairlead.control.present import foreseen, reason_view
from fairlead.errors import RateLimited, Refused
from fairlead.scheduling.admission import Answer, admission
from fairlead.scheduling.classes import Share, bound, observed, purpose, signature
from fairlead.scheduling.decide import decide
from fairlead.scheduling.market.policy import DEFAULTS
from fairlead.scheduling.score import resource_score
from fairlead.scheduling.state import ClusterState, JobState
from fairlead.scheduling.words import second
from fairlead.specs import STORED, Sla
from fairlead.views import PromiseView

FEW = 200
"""With more jobs than this in the cluster, a submission does not wait until the policy has been played forward."""

PAUSE = 10.0
"""Between two looks at promises in a deep queue, in lengths of the first: so they take a tenth of the time."""


MOST_WAITING = 8
"""Questions of one tenant about the future that wait for their turn, or have it."""

T = TypeVar("T")


class Turns:
    """Whose question about the future is worked on: one at a time, tenants in turn, as each may take a core for long.

    A caller that goes away leaves its question in its turn: the thread that works on it cannot be stopped.
    """

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._own: dict[str, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()

    async def take(self, tenant: str, work: Callable[[], Awaitable[T]]) -> T:
        """What the work returns, once it is the tenant's turn; :class:`RateLimited` for one question too many."""
        if self._waiting[tenant] >= MOST_WAITING:
            raise RateLimited(f"{MOST_WAITING} questions of {tenant} about the future wait for an answer already",
                              fix="ask again when they have been answered")  # fmt: skip
        self._waiting[tenant] += 1
        task = asyncio.create_task(self._in_turn(tenant, work))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _in_turn(self, tenant: str, work: Callable[[], Awaitable[T]]) -> T:
        try:
            async with self._own.setdefault(tenant, asyncio.Lock()), self._one:
                return await work()
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant], self._own[tenant]


async def asked(state: ClusterState, job: JobState, *, strict: bool = False, look_ahead: bool = True) -> Answer:
    """What would become of this job; in a thread, as it may play the policy forward."""
    return await asyncio.to_thread(partial(admission, state, job, decide, strict=strict, look_ahead=look_ahead))


async def at_once(state: ClusterState, job: JobState, *, strict: bool = False) -> Answer:
    """The same for one that is being handed in, which is never to take long."""
    return await asked(state, job, strict=strict, look_ahead=len(state.jobs) <= FEW)


async def promised(state: ClusterState, job_id: str) -> Answer | None:
    """The same about one that is there already; None if it is not."""
    job = next((job for job in state.jobs if job.id == job_id), None)
    return None if job is None else await asked(state, job)


def profile(state: ClusterState, job_id: str) -> dict[str, Any]:
    """What kind of work this is: its purpose, what bounds it, a worker's parts of what a device comes with, its RS."""
    job = next((job for job in state.jobs if job.id == job_id), None)
    if job is None:
        return {}
    share = Share.of(node for node in state.nodes if node.schedulable)
    seen = observed(job, share)
    return {
        "purpose": str(purpose(job)),
        "bound": str(bound(seen)),
        "memory": seen.memory,
        "compute": seen.compute,
        "network": seen.network,
        "score": resource_score(signature(job, share), DEFAULTS),
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


def sla_of(spec: Sla | None, tenant: Mapping[str, Any]) -> Sla:
    """What is promised for a job: what it says, or else what its tenant has for all."""
    return spec if spec is not None else Sla.model_validate(dict(tenant), context=STORED)


def refusal(answer: Answer) -> Refused:
    """To a strict job whose promise cannot be kept."""
    earliest = answer.earliest_deadline_s
    instead = "" if earliest is None else f"ask for {second(earliest)} or later, "
    return Refused(answer.why.text, field="sla", fix=f"{instead}or leave out sla.strict")
