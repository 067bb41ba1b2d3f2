"""The verb restore: brings a platform back from a backup."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from fairlead.cli import output
from fairlead.cli.commands.backup import BackupFile, absolute, home_at, progress_bar
from fairlead.cli.commands.up import STORE
from fairlead.cli.options import HomeDir, Json


def restore(
    file: BackupFile,
    home: HomeDir = None,
    store: Annotated[
        str | None, typer.Option("--store", help="URL of an empty database; default: FAIRLEAD_STORE, or SQLite.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Restore a platform from a backup into an empty home, completely or not at all. Then: fairlead up."""
    from fairlead.control.backup.restore import restore as bring_back

    target = home_at(home)
    store = store or os.environ.get(STORE) or None  # as for up: keeps a password off the command line
    with progress_bar() as progress:
        back = bring_back(absolute(file), target, store=store, progress=progress)
    if as_json:
        output.print_json({name: getattr(back, name) for name in back.__slots__})
        return
    taken = time.strftime("%Y-%m-%d %H:%M", time.localtime(back.taken_s))
    output.line(
        f"{back.home}: restored as of {taken} (Fairlead {back.version}): {back.rows} rows, {back.files} files, "
        f"{back.going_on} unfinished jobs, which resume at the next start"
    )
    if back.left_out:
        output.line(f"  {back.left_out} folders of unknown jobs were skipped", style="yellow")
    if back.secrets_without_key:
        output.line(f"  {back.secrets_without_key} secrets without their key: set FAIRLEAD_SECRET_KEY, "
                  "or set them again: fairlead secret set NAME", style="yellow")  # fmt: skip
    if not back.admin_token:
        output.line(
            "  existing tokens stay valid; the first start creates a new admin token for this machine", style="dim"
        )
    output.line(f"  next: fairlead up --home {back.home}", style="dim")
