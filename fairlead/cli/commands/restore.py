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
        str | None, typer.Option("--store", help="An empty database's URL; default: FAIRLEAD_STORE, or SQLite.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Bring a platform back from a backup, into an empty home; all of it or nothing. Then: fairlead up."""
    from fairlead.control.backup.restore import restore as bring_back

    target = home_at(home)
    store = store or os.environ.get(STORE) or None  # like up: a password is not for the command line
    with progress_bar() as progress:
        back = bring_back(absolute(file), target, store=store, progress=progress)
    if as_json:
        output.print_json({name: getattr(back, name) for name in back.__slots__})
        return
    taken = time.strftime("%Y-%m-%d %H:%M", time.localtime(back.taken_s))
    output.line(f"{back.home}: as it was on {taken} (Fairlead {back.version}); "
              f"{back.rows} rows, {back.files} files, {back.going_on} jobs go on")  # fmt: skip
    if back.left_out:
        output.line(f"  {back.left_out} folders of jobs that its store does not know were left out", style="yellow")
    if back.secrets_without_key:
        output.line(f"  {back.secrets_without_key} secrets came without their key: give it (FAIRLEAD_SECRET_KEY), "
                  "or set them again: fairlead secret set NAME", style="yellow")  # fmt: skip
    if not back.admin_token:
        output.line(
            "  tokens are good as before; the first start makes another admin token for this machine", style="dim"
        )
    output.line(f"  next: fairlead up --home {back.home}", style="dim")
