"""The verb audit: who changed what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli import output
from fairlead.cli.options import SINCE_HELP, Csv, Json, Tenant, client, parse_moment
from fairlead.cli.text_tables import Column

if TYPE_CHECKING:
    from fairlead.views.jobs import AuditView


def audit(
    after: Annotated[int | None, typer.Option("--after", min=0, help="Only entries after this id.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many of the newest entries.")] = 100,
    actor: Annotated[str | None, typer.Option("--actor", help="Only by the token with this id.")] = None,
    action: Annotated[
        str | None, typer.Option("--action", help="Only actions with this prefix: token.create, token., refused.")
    ] = None,
    since: Annotated[str | None, typer.Option("--since", help=SINCE_HELP)] = None,
    until: Annotated[str | None, typer.Option("--until", help="Until this time; default: now.")] = None,
    tenant: Tenant = None,
    as_csv: Csv = False,
    as_json: Json = False,
) -> None:
    """List who changed what, newest last. Tenant-admins see their tenant's entries."""
    found = client().audit(
        after=-limit if after is None else after, limit=limit, actor=actor, action=action, tenant=tenant,
        since_s=None if since is None else parse_moment("--since", since),
        until_s=None if until is None else parse_moment("--until", until),
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
            Column("ID", right=True), Column("TIME"), Column("ACTOR"), Column("ACTION"), Column("TARGET"),
            Column("TENANT", from_width=100), Column("DETAIL", from_width=120, grows=True),
        ]  # fmt: skip
        rows = (
            [e.id, output.when(e.time_s), e.actor_label or e.actor, e.action, e.target, e.tenant or "–", _detail(e)]
            for e in found
        )
        output.table(columns, rows, empty="no matching entries")


def _detail(entry: AuditView) -> str:
    return " ".join(f"{name}={value}" for name, value in entry.detail.items())
