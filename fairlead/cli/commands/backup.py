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

BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="A file name ending in .tar.zst, .tar.gz or .tar.")]


def backup(
    file: BackupFile,
    home: HomeDir = None,
    with_secrets_key: Annotated[
        bool,
        typer.Option("--with-secrets-key", help="Include the key of the secrets and the admin token."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Write the platform of this machine into one file: store, code, results, logs, snapshots. It may run meanwhile."""
    from fairlead.control.backup.create import backup as take

    with progress_bar() as progress:
        taken = take(home_at(home), absolute(file), with_keys=with_secrets_key, force=force, progress=progress)
    if as_json:
        output.print_json({name: getattr(taken, name) for name in taken.__slots__})
        return
    what = f"{taken.rows} rows, {taken.files} files, {taken.jobs_going_on} unfinished jobs"
    output.line(f"{taken.path}: {output.size(taken.size_bytes)}; {what}")
    for note in taken.notes:
        output.line(f"  {note}", style="yellow")


def home_at(given: Path | None) -> Home:
    return Home((given or default_home()).expanduser().absolute())


def absolute(file: Path) -> Path:
    return file.expanduser().absolute()


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description:<24}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def report(done: int, total: int, what: str) -> None:
            if total:
                bar.update(task, completed=done, total=total, description=what)
            else:
                bar.update(task, description=what)

        yield report
