"""Creates and changes tenants, and creates, checks and revokes their tokens."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import structlog
from sqlalchemy import Connection

from fairlead import __version__
from fairlead.control.accounting.budgets import spendings, spent_budgets
from fairlead.control.identity import tokens as identity
from fairlead.control.identity.access import require, require_grant, scope, token_owner
from fairlead.control.job_views import person_view, tenant_view, token_view
from fairlead.control.records import Role, Tenant, Token
from fairlead.control.service.core import Verbs
from fairlead.control.store import events, job_counts, jobs, ledger, tenants, tokens
from fairlead.control.store.usage_breakdown import token_labels
from fairlead.control.tenant_tree import check_tenant, tenant_shares
from fairlead.errors import Conflict, FairleadError, InvalidSpec, NotFound, Refused, Unauthenticated
from fairlead.specs import TenantSpec, parse_tenant
from fairlead.views.jobs import NewTenant, NewToken, TenantView, TokenView, WhoAmI

log = structlog.get_logger()

_CHANGEABLE = ("weight", "quota", "parent", "guarantee", "most", "sla", "policy", "budget")
RECORD_USE_EVERY_S = 60.0  # a token's last use is recorded this often
MAX_TOKENS = 500  # valid tokens per tenant: each may hold streams, sessions and memory
MAX_NEW_TOKENS = 2000  # per tenant and day: revoked tokens stay in the store
DAY_S = 86_400.0
TOKEN_CACHE_S = 5.0  # revocation clears the cache at once; expiry is checked every time


class TenantVerbs(Verbs):
    """Operations on tenants and tokens."""

    _tokens: dict[str, tuple[float, Token]]
    _revoked: set[str]
    _used: dict[str, float]
    _recording: set[asyncio.Task[None]]

    async def authenticate(self, secret: str) -> Token:
        """The token of a bearer string, or Unauthenticated; a wrong one takes as long as a right one."""
        token_id, word = identity.parse(secret)
        now_s = self._core.clock()
        cached = self._tokens.get(token_id)
        if cached is not None and now_s - cached[0] < TOKEN_CACHE_S:
            token: Token | None = cached[1]
        else:
            token = await self._read(lambda connection: tokens.get(connection, token_id))
        known = identity.verify(token, word, now_s)
        if token_id in self._revoked:  # revoked while it was being read
            raise Unauthenticated("the token was revoked", fix="ask an admin for another")
        if cached is None or cached[1] is not known:
            self._tokens[token_id] = (now_s, known)
        if now_s - self._used.get(token_id, 0.0) >= RECORD_USE_EVERY_S:
            self._used[token_id] = now_s
            noting = asyncio.create_task(self._record_use(token_id, now_s))
            self._recording.add(noting)
            noting.add_done_callback(self._recording.discard)
        return known

    async def _record_use(self, token_id: str, now_s: float) -> None:
        """Record the use outside the request, which need not wait for the disk.

        A lost record is repeated a minute later.
        """
        try:
            await self._write(lambda connection: tokens.record_use(connection, token_id, now_s))
        except FairleadError as error:
            log.info("cannot record the use of a token", token=token_id, error=str(error))

    async def whoami(self, who: Token) -> WhoAmI:
        return WhoAmI(token=who.id, role=str(who.role), tenant=who.tenant, version=__version__)

    async def create_tenant(self, who: Token, spec: TenantSpec) -> NewTenant:
        """The new tenant with its first token, which is shown only this once."""
        require(who, Role.ADMIN, "create tenants")
        now_s = self._core.clock()

        def work(connection: Connection) -> tuple[Tenant, Token, str]:
            self._require_isolation(connection, spec.name)
            tenant = tenants.insert(connection, spec)
            self._check_tree(connection, tenant)
            token, secret = identity.mint(spec.name, Role.TENANT_ADMIN, "first token", None, now_s)
            tokens.insert(connection, token)
            self._audit(connection, who, "tenant.create", spec.name, tenant=spec.name, **_spec_fields(spec))
            events.append(connection, time_s=now_s, kind="tenant-created", tenant=spec.name,
                          text=f"tenant {spec.name} was created with weight {spec.weight:g}")  # fmt: skip
            return tenant, token, secret

        tenant, token, secret = await self._write(work)
        self._core.controller.nudge()
        shown = NewToken(**token_view(token).model_dump(), token=secret)
        view = next(view for view in await self.tenants(who) if view.name == tenant.name)
        return NewTenant(tenant=view, token=shown)

    def _require_isolation(self, connection: Connection, name: str) -> None:
        """Refuse a second tenant without sandboxes, unless the operator chose so: tenants must not trust each other."""
        means = self._core.controller.backend.capabilities
        others = [tenant.name for tenant in tenants.all_tenants(connection) if tenant.name != name]
        if others and means.isolation != "sandbox" and not means.isolation_chosen:
            raise Conflict(
                f"a second tenant beside {others[0]} needs a sandbox, and the isolation here is {means.isolation}",
                fix="install bubblewrap (apt install bubblewrap) and start again, or accept it: "
                    "fairlead down, then fairlead up --isolation none",
            )  # fmt: skip

    def _check_tree(self, connection: Connection, tenant: Tenant) -> None:
        check_tenant(tenant, tenants.all_tenants(connection), list(self._core.controller.nodes.values()))

    async def tenants(self, who: Token) -> list[TenantView]:
        """Tenants with their entitlement, devices and usage.

        A tenant without jobs claims nothing; it is shown what it could claim if all tenants wanted everything.
        """
        controller, now_s = self._core.controller, self._core.clock()
        devices = sum(node.devices for node in controller.nodes.values())
        # Counted here, not in the reader thread: the reconcile loop changes these meanwhile.
        living = {
            job: sum(fact.holds_device for fact in facts.values())
            for job, facts in controller.gang_registry.workers.items()
        }

        def work(connection: Connection) -> list[TenantView]:
            counts, used = job_counts.counts_by_tenant(connection), ledger.totals(connection, 0.0, now_s)
            held: Counter[str] = Counter()
            hands: Counter[tuple[str, str]] = Counter()
            for job, number in living.items():
                found = jobs.get(connection, job) if number else None
                if found is not None:
                    held[found.tenant] += number
                    hands[found.tenant, found.submitted_by] += number
            known, people = tenants.all_tenants(connection), job_counts.counts_by_submitter(connection)
            labels = token_labels(connection, {person for _, person in people}, scope(who)) if people else {}
            spending = spendings(connection, known, now_s)
            barred = spent_budgets(known, spending).keys()
            claims = tenant_shares(known, controller.last_round.entitlements, held, devices, barred)
            return [
                tenant_view(
                    tenant,
                    claims[tenant.name],
                    held[tenant.name],
                    counts.get(tenant.name, {}),
                    used.get(tenant.name, 0.0),
                    spending.get(tenant.name),
                    [
                        person_view(person, labels.get(person), hands[name, person], phases)
                        for (name, person), phases in sorted(people.items())
                        if name == tenant.name
                    ],
                )
                for tenant in known
                if scope(who) in (None, tenant.name)
            ]

        return await self._read(work)

    async def update_tenant(self, who: Token, name: str, changes: dict[str, Any]) -> TenantView:
        """Change shares, limits, default SLA, budget or policy fields; takes effect in the next round."""
        require(who, Role.ADMIN, "change tenants")
        unknown = sorted(set(changes) - set(_CHANGEABLE))
        if unknown:
            raise InvalidSpec("cannot be changed", field=unknown[0], fix=f"change one of {', '.join(_CHANGEABLE)}")

        def work(connection: Connection) -> None:
            tenant = tenants.get(connection, name)
            if tenant is None:
                raise NotFound(f"{name!r}: no such tenant", field="tenant", value=name, fix="see fairlead tenants")
            present = {"name": name, "weight": tenant.weight, "quota": tenant.quota, "sla": dict(tenant.sla)}
            present |= {"policy": dict(tenant.policy), "budget": dict(tenant.budget) or None, "parent": tenant.parent}
            present |= {"guarantee": dict(tenant.guarantee), "most": dict(tenant.most)}
            changed = {**present, **changes}
            if "policy" in changes:  # policy fields that are not named stay
                kept = {**tenant.policy.get("retention", {}), **changes["policy"].get("retention", {})}
                changed["policy"] = {**tenant.policy, **changes["policy"]} | ({"retention": kept} if kept else {})
            tenant = tenants.update(connection, name, **tenants.spec_columns(parse_tenant(changed)))
            if changes.keys() & {"parent", "guarantee"}:
                self._check_tree(connection, tenant)
            self._audit(connection, who, "tenant.update", name, tenant=name, **changes)

        await self._write(work)
        self._core.controller.nudge()
        return next(view for view in await self.tenants(who) if view.name == name)

    async def create_token(
        self, who: Token, tenant: str | None, role: str, label: str, expires_s: float | None
    ) -> NewToken:
        """A new token; its secret is only in this response."""
        try:
            wanted = Role(role)
        except ValueError:
            fix = f"use {', '.join(Role)}"
            raise InvalidSpec(f"{role!r} is not a role", field="role", value=role, fix=fix) from None
        require(who, Role.TENANT_ADMIN, "make tokens")
        owner = token_owner(who, wanted, tenant)
        require_grant(who, wanted, owner)
        now_s = self._core.clock()
        if expires_s is not None and expires_s <= now_s:
            raise InvalidSpec("is in the past", field="expires_s", value=expires_s, fix="name a later time")
        token, secret = identity.mint(owner, wanted, label, expires_s, now_s)

        def work(connection: Connection) -> None:
            if owner is not None and tenants.get(connection, owner) is None:
                raise NotFound(f"{owner!r}: no such tenant", field="tenant", value=owner, fix="see fairlead tenants")
            if owner is not None:
                require_token_room(connection, owner, now_s)
            tokens.insert(connection, token)
            self._audit(connection, who, "token.create", token.id, tenant=owner, role=role, label=label)

        await self._write(work)
        return NewToken(**token_view(token).model_dump(), token=secret)

    async def tokens(self, who: Token) -> list[TokenView]:
        require(who, Role.TENANT_ADMIN, "list tokens")
        found = await self._read(lambda connection: tokens.list_tokens(connection, scope(who)))
        return [token_view(token) for token in found]

    async def revoke_token(self, who: Token, id: str) -> TokenView:
        """Revoke the token at once."""
        require(who, Role.TENANT_ADMIN, "revoke tokens")
        now_s = self._core.clock()

        def work(connection: Connection) -> Token:
            token = tokens.get(connection, id)
            if token is None or (scope(who) is not None and token.tenant != scope(who)):
                raise NotFound(f"{id!r}: no such token", field="token", value=id, fix="see fairlead token list")
            self._audit(connection, who, "token.revoke", id, tenant=token.tenant)
            return tokens.revoke(connection, id, now_s)

        revoked = await self._write(work)
        self._revoked.add(id)
        self._tokens.pop(id, None)
        return token_view(revoked)


def require_token_room(connection: Connection, tenant: str, now_s: float) -> None:
    """Refuse another token to a tenant that has the most allowed."""
    good, made = tokens.counts(connection, tenant, now_s, now_s - DAY_S)
    if good >= MAX_TOKENS:
        fix = "revoke unused ones: fairlead token list, fairlead token revoke ID"
        text = f"tenant {tenant} has {good} valid tokens, the most that are allowed"
        raise Refused(text, field="tenant", value=tenant, fix=fix)
    if made >= MAX_NEW_TOKENS:
        text = f"tenant {tenant} created {made} tokens within a day, the most that are allowed"
        raise Refused(text, field="tenant", value=tenant, fix="use existing tokens, or wait until tomorrow")


def _spec_fields(spec: TenantSpec) -> dict[str, Any]:
    """The fields of the request besides the name, for the audit log."""
    return spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"name", "apiVersion", "kind"})
