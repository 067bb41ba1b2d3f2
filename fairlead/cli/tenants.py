"""The verbs tenant and token: who uses the platform, with which weight, and by which keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import show
from fairlead.cli.options import Json, Tenant, client, sla
from fairlead.cli.show import Column
from fairlead.errors import InvalidSpec

if TYPE_CHECKING:
    from fairlead.views import TenantView

tenant = typer.Typer(help="Create, list and change tenants.", rich_markup_mode=None)
token = typer.Typer(help="Create, list and revoke tokens.", rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The tenant's name.")]
Weight = Annotated[float | None, typer.Option("--weight", help="Its weight in the shares.")]
Quota = Annotated[str | None, typer.Option("--quota", help="Devices it may hold at once; none: no limit.")]
Promise = Annotated[
    str | None, typer.Option("--sla", help="Its jobs' default: gold, silver, bronze, done within 30m, or none.")
]


@tenant.command("create")
def create_tenant(
    name: Name, weight: Weight = None, quota: Quota = None, promise: Promise = None, as_json: Json = False
) -> None:
    """Create a tenant; its first token is printed this one time."""
    made = client().create_tenant(name, weight=weight, quota=_quota(quota), sla=sla(promise))
    if as_json:
        show.print_json(made)
        return
    show.line(f"created tenant {made.tenant.name} with weight {made.tenant.weight:g}")
    show.line(f"  its token, shown only now: {made.token.token}")
    show.line("  its people set FAIRLEAD_TOKEN to it", style="dim")


@tenant.command("update")
def update_tenant(
    name: Name, weight: Weight = None, quota: Quota = None, promise: Promise = None, as_json: Json = False
) -> None:
    """Change a tenant's weight, quota or default SLA."""
    changes: dict[str, Any] = {}
    if weight is not None:
        changes["weight"] = weight
    if quota is not None:
        changes["quota"] = _quota(quota)
    if promise is not None:
        changes["sla"] = sla(promise)
    if not changes:
        raise InvalidSpec("nothing to change", fix="give --weight, --quota or --sla")
    changed = client().update_tenant(name, **changes)
    if as_json:
        show.print_json(changed)
    else:
        _table([changed])


@tenant.command("list")
def list_tenants(as_json: Json = False) -> None:
    """Tenants with their weight, what they may claim and what they hold."""
    found = client().tenants()
    if as_json:
        show.print_json({"tenants": found})
    else:
        _table(found)


def _table(tenants: list[TenantView]) -> None:
    columns = [
        Column("TENANT"), Column("WEIGHT", right=True), Column("QUOTA", right=True), Column("ENTITLED", right=True),
        Column("HOLDS", right=True), Column("RUNNING", right=True), Column("QUEUED", right=True),
        Column("USED", right=True), Column("SLA", from_width=90),
    ]  # fmt: skip
    rows = (
        [
            each.name, show.number(each.weight), "–" if each.quota is None else each.quota,
            show.number(each.entitlement), each.devices, each.running, each.queued, show.duration(each.device_s),
            " ".join(f"{name} {value}" for name, value in each.sla.items() if value is not None) or "–",
        ]
        for each in tenants
    )  # fmt: skip
    show.table(columns, rows, empty="no tenants; create one: fairlead tenant create NAME")


def _quota(text: str | None) -> int | None:
    if text is None or text == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidSpec(f"{text!r} is not a number of devices", field="--quota", fix="write 4, or none") from None


@token.command("create")
def create_token(
    of: Tenant = None,
    role: Annotated[str, typer.Option("--role", help="admin, tenant-admin, member or viewer.")] = "member",
    label: Annotated[str, typer.Option("--label", help="What it is for.")] = "",
    expires: Annotated[str | None, typer.Option("--expires", help="Good for so long, such as 30d.")] = None,
    as_json: Json = False,
) -> None:
    """Create a token; its secret is printed this one time."""
    made = client().create_token(role, tenant=of, label=label, expires_s=_expires_s(expires))
    if as_json:
        show.print_json(made)
        return
    show.line(f"created token {made.id}: {made.role} of {made.tenant or 'the platform'}")
    show.line(f"  shown only now: {made.token}")


def _expires_s(text: str | None) -> float | None:
    from fairlead.specs import parse_duration

    try:
        return None if text is None else float(parse_duration(text))
    except ValueError as error:
        raise InvalidSpec(f"{text!r} {error}", field="--expires", fix="write it like 12h or 30d") from None


@token.command("list")
def list_tokens(as_json: Json = False) -> None:
    """Tokens without their secrets."""
    found = client().tokens()
    if as_json:
        show.print_json({"tokens": found})
        return
    columns = [Column("ID"), Column("TENANT"), Column("ROLE"), Column("LABEL"), Column("EXPIRES"), Column("REVOKED")]
    rows = (
        [each.id, each.tenant or "–", each.role, each.label, show.when(each.expires_s), show.when(each.revoked_s)]
        for each in found
    )
    show.table(columns, rows, empty="no tokens")


@token.command("revoke")
def revoke_token(
    id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as in the list.")], as_json: Json = False
) -> None:
    """Make a token useless at once."""
    revoked = client().revoke_token(id)
    if as_json:
        show.print_json(revoked)
    else:
        show.line(f"revoked token {revoked.id}")
