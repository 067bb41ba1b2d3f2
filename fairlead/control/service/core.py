"""What all verbs share: the store, the controller, the home folder and the clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import Connection

from fairlead.control.access import scope
from fairlead.control.deciding import read_state
from fairlead.control.event_ring import EventRing
from fairlead.control.forecasts import Forecasts
from fairlead.control.loop import Controller
from fairlead.control.metrics.scrape import Scraper
from fairlead.control.records import Generation, Job, Tenant, Token
from fairlead.control.service.promising import Turns
from fairlead.control.store import audit, generations, jobs, tenants
from fairlead.control.store.engine import Store
from fairlead.control.vault import Vault
from fairlead.errors import NotFound
from fairlead.home import Home
from fairlead.scheduling.state import ClusterState

T = TypeVar("T")

NOTED_EVERY_S = 60.0  # what one token does again and again, such as to log in or to be refused, is audited so often


@dataclass
class Core:
    """The parts behind the verbs."""

    store: Store
    controller: Controller
    home: Home
    vault: Vault
    clock: Callable[[], float]
    stop: Callable[[], None]  # ends the platform
    started_s: float
    scraper: Scraper
    forecasts: Forecasts = field(default_factory=Forecasts)
    turns: Turns = field(default_factory=Turns)
    ring: EventRing = field(default_factory=EventRing)
    noted: Seldom = field(default_factory=lambda: Seldom(NOTED_EVERY_S))
    promises_again_s: float = 0.0  # not before this does a deep queue let another promise be looked at


class Seldom:
    """What is noted of one token once in so many seconds: who repeats itself shall not fill the store."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._noted_s: dict[tuple[str, str], float] = {}

    def due(self, token: str, deed: str, now_s: float) -> bool:
        """Whether this deed of a token is to be noted; if so, it is not again for a while."""
        if now_s - self._noted_s.get((token, deed), -self._every_s) < self._every_s:
            return False
        fresh = {key: noted_s for key, noted_s in self._noted_s.items() if now_s - noted_s < self._every_s}
        self._noted_s = fresh | {(token, deed): now_s}
        return True


class Verbs:
    """Base of a group of verbs."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def _read(self, work: Callable[[Connection], T]) -> T:
        return await self._core.store.read(work)

    async def _write(self, work: Callable[[Connection], T]) -> T:
        return await self._core.store.write(work)

    async def _find(self, who: Token, ref: str) -> tuple[Job, list[Generation]]:
        """The job that the reference means to this token, with its live generations."""

        def work(connection: Connection) -> tuple[Job, list[Generation]]:
            job = jobs.find(connection, ref, scope(who))
            return job, generations.current(connection, {job.id}).get(job.id, [])

        return await self._read(work)

    async def _starts(self) -> Mapping[str, float]:
        """When the jobs that wait may expect to start; empty while none does."""
        outlook = self._core.controller.outlook
        if not outlook.holds:
            return {}
        return await self._core.forecasts.starts(len(outlook.holds), outlook.decided_s, self._core.clock(), self._seen)

    async def _seen(self) -> ClusterState:
        """What the policy would decide by if it were asked now."""
        controller, now_s = self._core.controller, self._core.clock()
        found = await read_state(
            self._core.store, now_s, controller.nodes, controller.known, frozenset(), controller.outlook.memory,
            controller.plans.curve, sharing=controller.sharing, aside=controller.quarantine.held(),
        )  # fmt: skip
        return found.cluster

    def _audit(
        self, connection: Connection, who: Token, action: str, target: str, *, tenant: str | None = None,
        **detail: object,
    ) -> None:  # fmt: skip
        """Write down who did what; ``tenant`` is whose things it is about, if not the asking one's own."""
        audit.append(connection, time_s=self._core.clock(), actor=who.id, action=action, target=target, detail=detail,
                     tenant=tenant or who.tenant)  # fmt: skip


def tenant_named(connection: Connection, name: str) -> Tenant:
    """The tenant of this name; raises NotFound where there is none."""
    tenant = tenants.get(connection, name)
    if tenant is None:
        raise NotFound(f"{name!r}: no such tenant", field="tenant", value=name,
                       fix="fairlead tenants shows those that exist; fairlead tenant create makes one")  # fmt: skip
    return tenant
