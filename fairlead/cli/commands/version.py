"""The verb version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.cli import output
from fairlead.cli.options import Json

if TYPE_CHECKING:
    pass


def version(as_json: Json = False) -> None:
    """Print the version of this command."""
    import fairlead

    if as_json:
        output.print_json({"version": fairlead.__version__})
    else:
        output.line(f"fairlead {fairlead.__version__}")
