"""The verb token: creates, lists and revokes access tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli import output
from fairlead.cli.options import Json, Tenant, client, invalid_value
from fairlead.cli.text_tables import Column
from fairlead.units import parse_duration

if TYPE_CHECKING:
    from fairlead.views.jobs import TokenView

app = typer.Typer(help="Create, list and revoke tokens.", rich_markup_mode=None)


@app.command("create")
def create(
    of: Tenant = None,
    role: Annotated[str, typer.Option("--role", help="admin, tenant-admin, member, viewer or scraper.")] = "member",
    label: Annotated[str, typer.Option("--label", help="Description of its use.")] = "",
    expires: Annotated[str | None, typer.Option("--expires", help="Lifetime, such as 30d; default: no expiry.")] = None,
    as_json: Json = False,
) -> None:
    """Create a token. Its secret is printed once and never again."""
    expires_s = _expires_s(expires)
    made = client().create_token(role, tenant=of, label=label, expires_s=expires_s)
    if as_json:
        output.print_json(made)
        return
    output.line(f"created token {made.id}: {made.role} of {made.tenant or 'the platform'}")
    output.line(f"  shown only once: {made.token}")


def _expires_s(text: str | None) -> float | None:
    try:
        return None if text is None else float(parse_duration(text))
    except ValueError as error:
        raise invalid_value("--expires", text or "", error, "write it like 12h or 30d") from None


@app.command("list")
def list_tokens(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include revoked and expired tokens.")] = False,
    of: Tenant = None,
    as_json: Json = False,
) -> None:
    """List valid tokens, without their secrets, and when each was last used."""
    found = [each for each in client().tokens() if of in (None, each.tenant)]
    shown = found if everything else [each for each in found if _is_valid(each)]
    if as_json:
        output.print_json({"tokens": shown})
        return
    columns = [
        Column("ID"), Column("TENANT"), Column("ROLE"), Column("LABEL"), Column("CREATED", from_width=100),
        Column("LAST USED"), Column("EXPIRES"), *([Column("REVOKED")] if everything else []),
    ]  # fmt: skip
    rows = (
        [
            each.id, each.tenant or "–", each.role, each.label or "–", output.when(each.created_s), _last_used(each),
            output.when(each.expires_s), output.when(each.revoked_s),
        ]
        for each in shown
    )  # fmt: skip
    output.table(columns, rows, empty="no tokens")
    if len(found) > len(shown):
        output.line(f"… and {len(found) - len(shown)} revoked or expired (--all shows them)")


def _is_valid(token: TokenView) -> bool:
    return token.revoked_s is None and (token.expires_s is None or token.expires_s > output.now_s())


def _last_used(token: TokenView) -> str:
    return "never" if token.used_s is None else output.when(token.used_s)


@app.command("revoke")
def revoke(
    id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as shown by fairlead token list.")],
    as_json: Json = False,
) -> None:
    """Revoke a token at once."""
    revoked = client().revoke_token(id)
    if as_json:
        output.print_json(revoked)
    else:
        output.line(f"revoked token {revoked.id}")
