"""The verb backup: writes a platform into one file, also while it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli import output
from fairlead.cli.options import HomeDir, Json
from fairlead.home import Home, default_home

BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="A file that ends in .tar.zst, .tar.gz or .tar.")]


def backup(
    file: BackupFile,
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

    with progress_bar() as progress:
        taken = take(home_at(home), absolute(file), with_keys=with_secrets_key, force=force, progress=progress)
    if as_json:
        output.print_json({name: getattr(taken, name) for name in taken.__slots__})
        return
    what = f"{taken.rows} rows, {taken.files} files"
    output.line(
        f"{taken.path}: {output.size(taken.size_bytes)}, {what}; {taken.jobs_going_on} jobs would go on from it"
    )
    for note in taken.notes:
        output.line(f"  {note}", style="yellow")


def home_at(given: Path | None) -> Home:
    return Home((given or default_home()).expanduser().absolute())


def absolute(file: Path) -> Path:
    return file.expanduser().absolute()


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int, str], None]]:
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
