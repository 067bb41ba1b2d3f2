"""What all operations share: store, controller, home, clock, forecasts and the audit throttle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import Connection

from fairlead.control.foresight.process import ADMISSIONS, Foresight
from fairlead.control.identity.access import scope
from fairlead.control.identity.secret_vault import SecretVault
from fairlead.control.observability.event_ring import EventRing
from fairlead.control.observability.scrape import Scraper
from fairlead.control.plans.planner_process import PlannerProcess, TooManyQuestions
from fairlead.control.reconcile.loop import Controller
from fairlead.control.reconcile.round_store import read_state
from fairlead.control.records import Generation, Job, Tenant, Token
from fairlead.control.service.sla_admission import MAX_JOBS_TO_WAIT
from fairlead.control.service.start_forecasts import Forecasts
from fairlead.control.store import audit, generations, jobs, tenants
from fairlead.control.store.engine import Store
from fairlead.errors import NotFound, RateLimited
from fairlead.home import Home
from fairlead.scheduling.admission import Answer
from fairlead.scheduling.state import ClusterState, JobState

T = TypeVar("T")

AUDIT_EVERY_S = 60.0  # repeated actions of one token (logins, refusals) are audited this often


@dataclass
class Core:
    """The parts behind the operations."""

    store: Store
    controller: Controller
    home: Home
    vault: SecretVault
    clock: Callable[[], float]
    stop: Callable[[], None]  # ends the platform
    started_s: float
    scraper: Scraper
    foresight: Foresight = field(default_factory=Foresight)  # for queries
    promises: Foresight = field(default_factory=lambda: Foresight(PlannerProcess(ADMISSIONS)))  # for submissions
    ring: EventRing = field(default_factory=EventRing)
    audit_throttle: AuditThrottle = field(default_factory=lambda: AuditThrottle(AUDIT_EVERY_S))
    next_promise_check_s: float = 0.0  # with a deep queue, the next promise is checked after this

    def __post_init__(self) -> None:
        self.forecasts = Forecasts(self.foresight)


class AuditThrottle:
    """Limits audit entries of repeated actions, so that one token cannot fill the store."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._noted_s: dict[tuple[str, str], float] = {}

    def due(self, token: str, deed: str, now_s: float) -> bool:
        """True if this action of a token is to be recorded now; then it is not due again for a while."""
        # An entry from a later time than now is of before the clock was set back.
        self._noted_s = {key: at_s for key, at_s in self._noted_s.items() if 0.0 <= now_s - at_s < self._every_s}
        if (token, deed) in self._noted_s:
            return False
        self._noted_s[token, deed] = now_s
        return True


class Verbs:
    """Base class of a group of operations."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def _read(self, work: Callable[[Connection], T]) -> T:
        return await self._core.store.read(work)

    async def _write(self, work: Callable[[Connection], T]) -> T:
        return await self._core.store.write(work)

    async def _find(self, who: Token, ref: str) -> tuple[Job, list[Generation]]:
        """The job that the reference means for this token, with its live generations."""

        def work(connection: Connection) -> tuple[Job, list[Generation]]:
            job = jobs.find(connection, ref, scope(who))
            return job, generations.live_by_job(connection, {job.id}).get(job.id, [])

        return await self._read(work)

    async def _expected_starts(self) -> Mapping[str, float]:
        """Expected start times of waiting jobs; empty while none waits."""
        outlook = self._core.controller.last_round
        if not outlook.holds:
            return {}
        waiting, now_s = len(outlook.holds), self._core.clock()
        return await self._core.forecasts.starts(waiting, outlook.decided_s, now_s, self._recent_state)

    async def _recent_state(self) -> ClusterState:
        """The state for decisions now; with many jobs, the state of the last round."""
        last = self._core.controller.last_round.cluster
        return last if last is not None and len(last.jobs) > MAX_JOBS_TO_WAIT else await self._current_state()

    async def _current_state(self) -> ClusterState:
        """The state by which the policy would decide now."""
        controller, now_s = self._core.controller, self._core.clock()
        found = await read_state(
            self._core.store, now_s, controller.nodes, controller.gang_registry, frozenset(),
            controller.last_round.memory, controller.plans.curve, sharing=controller.sharing,
            quarantined=controller.quarantine.held_jobs(),
        )  # fmt: skip
        return found.cluster

    async def _forecast_admission(
        self, state: ClusterState, job: JobState, tenant: str | None, *, strict: bool = False
    ) -> Answer:
        """Predict what becomes of this job, in text for this tenant; :class:`RateLimited` for too many questions."""
        try:
            return await self._core.foresight.admission(state, job, tenant, strict=strict)
        except TooManyQuestions as error:
            raise RateLimited(f"{job.tenant}: {error}", fix="ask again when they have been answered") from None

    def _audit(
        self, connection: Connection, who: Token, action: str, target: str, *, tenant: str | None = None,
        **detail: object,
    ) -> None:  # fmt: skip
        """Record who did what; ``tenant`` is whose resources it is about, if not the caller's own."""
        audit.append(connection, time_s=self._core.clock(), actor=who.id, action=action, target=target, detail=detail,
                     tenant=tenant or who.tenant)  # fmt: skip


def tenant_named(connection: Connection, name: str) -> Tenant:
    """The tenant of this name; raises NotFound without one."""
    tenant = tenants.get(connection, name)
    if tenant is None:
        raise NotFound(f"{name!r}: no such tenant", field="tenant", value=name,
                       fix="fairlead tenants shows those that exist; fairlead tenant create makes one")  # fmt: skip
    return tenant
