"""The verb whoami: which platform answers, and the role of the token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.cli import output
from fairlead.cli.options import Json, client

if TYPE_CHECKING:
    pass


def whoami(as_json: Json = False) -> None:
    """Show the platform's address and your token's role."""
    platform = client()
    me = platform.whoami()
    if as_json:
        output.print_json({**me.model_dump(), "url": platform.url})
    else:
        of = me.tenant or "the platform"
        output.line(f"{me.role} of {of} (token {me.token}) at {platform.url}, version {me.version}")
