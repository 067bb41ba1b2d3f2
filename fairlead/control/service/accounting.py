"""Usage breakdowns, the audit log, and records of refused requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection

from fairlead.control.identity.access import require, scope
from fairlead.control.records import AuditEntry, Role, Token
from fairlead.control.service.core import Verbs, tenant_named
from fairlead.control.store import audit
from fairlead.control.store.usage_breakdown import KEYS, BreakdownLine, break_down, token_labels
from fairlead.errors import FairleadError, InvalidSpec, NotFound
from fairlead.views.jobs import AuditView, UsageLine, UsageView

HOUR_S = 3600.0
MAX_KEYS = 6
MAX_PLACE_CHARS = 200  # recorded length of a refused request's path


class AccountVerbs(Verbs):
    """Usage and audit queries for the platform team and for each tenant."""

    async def usage(
        self, who: Token, by: Sequence[str], since_s: float, until_s: float, tenant: str | None, limit: int
    ) -> UsageView:
        """Device hours, CPU hours and jobs from the ledger, broken down; a tenant sees only its own."""
        keys = _keys(by)
        if until_s <= since_s:
            raise InvalidSpec("is not before until_s", field="since_s", value=since_s, fix="ask for an earlier one")
        own = scope(who)
        if own is not None and tenant not in (None, own):
            raise NotFound(f"{tenant!r}: no such tenant for this token", field="tenant", value=tenant,
                           fix="leave tenant out, or use a token of that tenant")  # fmt: skip

        def work(connection: Connection) -> UsageView:
            if tenant is not None:
                tenant_named(connection, tenant)
            lines, whole = break_down(connection, keys, since_s, until_s, own or tenant)
            users = {line.keys[keys.index("user")] for line in lines} if "user" in keys else set()
            labels = token_labels(connection, users, own) if users else {}
            return UsageView(
                since_s=since_s, until_s=until_s, by=keys, groups=len(lines), total=_line([], whole, {}),
                lines=[_line(keys, line, labels) for line in lines[:limit]],
            )  # fmt: skip

        return await self._read(work)

    async def audit(self, who: Token, after: int, limit: int, wanted: audit.AuditFilter = audit.ALL) -> list[AuditView]:
        """Audit entries, oldest first; negative ``after``: that many of the newest.

        Tenant admins see only their tenant's.
        """
        require(who, Role.TENANT_ADMIN, "read the audit log")
        own = scope(who)
        if own is not None and wanted.tenant not in (None, own):
            raise NotFound(f"{wanted.tenant!r}: no such tenant for this token", field="tenant", value=wanted.tenant,
                           fix="leave tenant out, or use a token of that tenant")  # fmt: skip
        asked = wanted if own is None else replace(wanted, tenant=own)

        def work(connection: Connection) -> list[AuditView]:
            start = audit.before_newest(connection, -after, asked) if after < 0 else after
            found = audit.after(connection, start, limit, asked)
            labels = token_labels(connection, {entry.actor for entry in found}, own)
            return [_entry(entry, labels) for entry in found]

        return await self._read(work)

    async def refused(self, who: Token, deed: str, place: str, error: FairleadError) -> None:
        """Record a forbidden request; the same one of a token at most once a minute."""
        if not self._core.audit_throttle.due(who.id, f"refused {deed}", self._core.clock()):
            return
        detail = {"role": str(who.role), "why": error.message}
        await self._write(lambda connection: self._audit(connection, who, "refused", place[:MAX_PLACE_CHARS], **detail))


def _keys(by: Sequence[str]) -> list[str]:
    fix = "use tenant, user, label, label:KEY, job, node, device"
    if not 1 <= len(by) <= MAX_KEYS:
        raise InvalidSpec(f"takes one to {MAX_KEYS} keys", field="by", value=",".join(by), fix=fix)
    for name in by:
        kind, colon, label = name.partition(":")
        if kind not in KEYS or (colon and (kind != "label" or not label)):
            raise InvalidSpec(f"{name!r} is not what usage can be broken down by", field="by", value=name, fix=fix)
        if set(label) & {'"', "\\"} or len(label) > 63:
            raise InvalidSpec(f"{label!r} is not the name of a label", field="by", value=name,
                              fix="use at most 63 characters, without quotes and backslashes")  # fmt: skip
    if len(set(by)) < len(by):
        raise InvalidSpec("names a key twice", field="by", value=",".join(by), fix="name each key once")
    return list(by)


def _line(by: Sequence[str], line: BreakdownLine, labels: dict[str, str]) -> UsageLine:
    keys = dict(zip(by, line.keys, strict=True))
    return UsageLine(
        keys=keys, device_hours=line.device_s / HOUR_S, cpu_hours=line.cpu_s / HOUR_S, jobs=line.jobs,
        user_label=labels.get(keys.get("user", "")),
    )  # fmt: skip


def _entry(entry: AuditEntry, labels: dict[str, str]) -> AuditView:
    return AuditView(
        id=entry.id, time_s=entry.time_s, actor=entry.actor, action=entry.action, target=entry.target,
        detail=dict(entry.detail), tenant=entry.tenant, actor_label=labels.get(entry.actor),
    )  # fmt: skip
