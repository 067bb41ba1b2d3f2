"""Verbs that look back: what was used by whom, and who did what."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli import output
from fairlead.cli.options import Csv, Json, Tenant, client, moment
from fairlead.cli.text_tables import Column
from fairlead.errors import InvalidSpec

if TYPE_CHECKING:
    from fairlead.views.jobs import AuditView, UsageLine

_SINCE = "From then on: 12h, 30d, or 2026-11-01 (UTC)."
EVERY_LINE = 100_000


def usage(
    by: Annotated[
        str, typer.Option("--by", help="By tenant, user, label, label:KEY, job, node, device; several with commas.")
    ] = "tenant",
    since: Annotated[str, typer.Option("--since", help=_SINCE)] = "30d",
    until: Annotated[str | None, typer.Option("--until", help="Up to then; default: now.")] = None,
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=EVERY_LINE, help="Rows of the table.")] = 50,
    as_csv: Csv = False,
    as_json: Json = False,
) -> None:
    """What was used, from the ledger: device hours, cpu hours and jobs."""
    keys = [name.strip() for name in by.split(",")]
    whole = as_csv or as_json
    since_s, until_s = moment("--since", since), None if until is None else moment("--until", until)
    if since_s >= (time.time() if until_s is None else until_s):
        behind = "now" if until is None else f"--until {until}"
        fix = "ask for an earlier time"
        raise InvalidSpec(f"{since!r} is not before {behind}", field="--since", value=since, fix=fix)
    answer = client().usage(keys, since_s=since_s, until_s=until_s, tenant=tenant, limit=EVERY_LINE if whole else limit)
    if as_json:
        output.print_json(answer)
    elif as_csv:
        titles = [*keys, *(["user_label"] if "user" in keys else []), "device_hours", "cpu_hours", "jobs"]
        output.csv(titles, (_cells(keys, line, line.device_hours, line.cpu_hours, "") for line in answer.lines))
    else:
        columns = [Column(key.upper() if ":" not in key else key) for key in keys]
        columns += [Column("FOR")] if "user" in keys else []
        columns += [Column(name, right=True) for name in ("DEVICE HOURS", "CPU HOURS", "JOBS")]
        lines = [*answer.lines, *([answer.total] if len(answer.lines) > 1 else [])]
        rows = (_cells(keys, line, _hours(line.device_hours), _hours(line.cpu_hours), "–") for line in lines)
        output.table(columns, rows, empty="nothing was used in that time")
        if answer.groups > len(answer.lines):
            output.line(f"the first {len(answer.lines)} of {answer.groups} (--limit N shows more, --csv all)")


def _hours(hours: float) -> str:
    """Exact where it is little: an hour is long."""
    if 0 < hours < 0.01:
        return output.number(hours, 2)
    return f"{hours:,.1f}" if hours >= 100 else f"{hours:.3f}"


def _cells(keys: list[str], line: UsageLine, device_hours: object, cpu_hours: object, none: str) -> list[object]:
    """A line of the answer; the total, which has no keys, says so."""
    of = [line.keys.get(key) or none for key in keys] if line.keys else ["together", *[""] * (len(keys) - 1)]
    label = [line.user_label or ("" if not line.keys else none)] if "user" in keys else []
    return [*of, *label, device_hours, cpu_hours, line.jobs]


def audit(
    after: Annotated[int | None, typer.Option("--after", min=0, help="Only after the entry with this id.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many of the newest.")] = 100,
    actor: Annotated[str | None, typer.Option("--actor", help="Only by the token with this id.")] = None,
    action: Annotated[
        str | None, typer.Option("--action", help="Only this, or what begins so: token.create, token., refused.")
    ] = None,
    since: Annotated[str | None, typer.Option("--since", help=_SINCE)] = None,
    until: Annotated[str | None, typer.Option("--until", help="Before then.")] = None,
    tenant: Tenant = None,
    as_csv: Csv = False,
    as_json: Json = False,
) -> None:
    """Who did what, the newest last. Tenant-admins see what is about their tenant."""
    found = client().audit(
        after=-limit if after is None else after, limit=limit, actor=actor, action=action, tenant=tenant,
        since_s=None if since is None else moment("--since", since),
        until_s=None if until is None else moment("--until", until),
    )  # fmt: skip
    if as_json:
        output.print_json({"entries": found})
    elif as_csv:
        titles = ["id", "time", "actor", "actor_label", "action", "target", "tenant", "detail"]
        rows = (
            [e.id, output.moment_iso(e.time_s), e.actor, e.actor_label, e.action, e.target, e.tenant, _detail(e)]
            for e in found
        )
        output.csv(titles, rows)
    else:
        columns = [
            Column("ID", right=True), Column("WHEN"), Column("WHO"), Column("DID"), Column("TO"),
            Column("TENANT", from_width=100), Column("HOW", from_width=120, grows=True),
        ]  # fmt: skip
        rows = (
            [e.id, output.when(e.time_s), e.actor_label or e.actor, e.action, e.target, e.tenant or "–", _detail(e)]
            for e in found
        )
        output.table(columns, rows, empty="nothing that fits")


def _detail(entry: AuditView) -> str:
    return " ".join(f"{name}={value}" for name, value in entry.detail.items())
