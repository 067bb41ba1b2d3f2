"""The verbs backup and restore: a platform in one file, taken while it runs, and brought back from it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli import output
from fairlead.cli.commands.up import STORE
from fairlead.cli.options import HomeDir, Json
from fairlead.home import Home, default_home

Backup = Annotated[Path, typer.Argument(metavar="FILE", help="A file that ends in .tar.zst, .tar.gz or .tar.")]


def backup(
    file: Backup,
    home: HomeDir = None,
    with_secrets_key: Annotated[
        bool,
        typer.Option("--with-secrets-key", help="Also what opens doors: the key of the secrets, the admin's token."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Write the platform of this machine into one file, while it runs or not: store, code, results, logs, snapshots."""
    from fairlead.control.backup.create import backup as take

    with _progress() as progress:
        taken = take(_home(home), _place(file), with_keys=with_secrets_key, force=force, progress=progress)
    if as_json:
        output.print_json({name: getattr(taken, name) for name in taken.__slots__})
        return
    what = f"{taken.rows} rows, {taken.files} files"
    output.line(
        f"{taken.path}: {output.size(taken.size_bytes)}, {what}; {taken.jobs_going_on} jobs would go on from it"
    )
    for note in taken.notes:
        output.line(f"  {note}", style="yellow")


def restore(
    file: Backup,
    home: HomeDir = None,
    store: Annotated[
        str | None, typer.Option("--store", help="An empty database's URL; default: FAIRLEAD_STORE, or SQLite.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Bring a platform back from a backup, into an empty home; all of it or nothing. Then: fairlead up."""
    from fairlead.control.backup.restore import restore as bring_back

    target = _home(home)
    store = store or os.environ.get(STORE) or None  # like up: a password is not for the command line
    with _progress() as progress:
        back = bring_back(_place(file), target, store=store, progress=progress)
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


def _home(given: Path | None) -> Home:
    return Home((given or default_home()).expanduser().absolute())


def _place(file: Path) -> Path:
    return file.expanduser().absolute()


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on a terminal's stderr, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description:<24}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def told(done: int, total: int, what: str) -> None:
            if total:
                bar.update(task, completed=done, total=total, description=what)
            else:
                bar.update(task, description=what)

        yield told
