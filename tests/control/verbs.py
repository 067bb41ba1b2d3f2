"""All verbs of the platform over a store, without a door and without a leader that runs: what is asked, by whom."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection

from fairlead.control.foresight.process import Foresight
from fairlead.control.identity import tokens as identity
from fairlead.control.identity.secret_vault import SecretVault
from fairlead.control.observability.event_metrics import EventFollower
from fairlead.control.observability.scrape import Scraper
from fairlead.control.plans.planner_process import InlinePlanner
from fairlead.control.reconcile.loop import Controller
from fairlead.control.records import AuditEntry, LoggedEvent, Role, Token
from fairlead.control.service import Platform
from fairlead.control.service.core import Core
from fairlead.control.store import audit, events, tokens
from fairlead.home import Home

from . import made
from .puppets import PuppetBackend
from .stores import Clock, Opened, run

T = TypeVar("T")


class Asked:
    """A platform to ask, with an admin and the people of two tenants."""

    def __init__(self, db: Opened, clock: Clock, folder: Path) -> None:
        self.db, self.clock = db, clock
        folder.mkdir()
        self.home = Home(folder)
        self.stopped: list[bool] = []
        self.secrets: dict[str, str] = {}
        self.backend = PuppetBackend(clock, 2)
        self.controller = Controller(db.store, self.backend, made.worker_order, clock)
        run(self.controller.refresh())
        follower = EventFollower(db.store, self.controller)
        scraper = Scraper(db.store, self.controller, follower, self.home)
        ahead = Foresight(InlinePlanner())
        self.core = Core(db.store, self.controller, self.home, SecretVault(self.home, b"k" * 32), clock,
                         lambda: self.stopped.append(True), clock(), scraper, ring=follower.ring, foresight=ahead,
                         promises=ahead)  # fmt: skip
        self.platform = Platform(self.core)
        self.admin = self.token(Role.ADMIN, None, "the admin")
        self.boss = self.token(Role.TENANT_ADMIN, "vision", "the boss")
        self.ann = self.token(Role.MEMBER, "vision", "ann")
        self.eve = self.token(Role.MEMBER, "text", "eve")
        self.guest = self.token(Role.VIEWER, "vision", "a guest")
        self.scraper = self.token(Role.SCRAPER, None, "prometheus")

    def token(self, role: Role, tenant: str | None, label: str, expires_s: float | None = None) -> Token:
        token, secret = identity.mint(tenant, role, label, expires_s, self.clock())
        self.db.write(tokens.insert, token)
        self.secrets[token.id] = secret
        return token

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        return run(work)

    def audited(self, action: str) -> list[AuditEntry]:
        return [entry for entry in self.db.read(audit.after, 0, 1000) if entry.action == action]

    def events(self, kind: str) -> list[LoggedEvent]:
        def work(connection: Connection) -> list[LoggedEvent]:
            return events.after(connection, 0, 1000)

        return [event for event in self.db.read(work) if event.kind == kind]
