"""The verb logs: the output of a job's workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli import output
from fairlead.cli.options import JobRef, Json, client

if TYPE_CHECKING:
    pass


def logs(
    job: JobRef,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the job has ended.")] = False,
    worker: Annotated[str | None, typer.Option("--worker", help="Only this worker, such as w0.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=1, help="Only the last N lines.")] = None,
    as_json: Json = False,
) -> None:
    """Print the output of a job's workers. With --json one object per line."""
    empty = True
    try:
        for written in client().logs(job, follow=follow, worker=worker, tail=tail):
            empty = False
            if as_json:
                output.print_json(written)
            else:
                output.line(
                    output.clean(written.text) if worker else f"{written.worker} | {output.clean(written.text)}"
                )
    except KeyboardInterrupt:
        raise typer.Exit(0) from None  # Ctrl-C is the usual way to stop following a log
    if empty:
        output.note(f"no output from {worker or job} yet")
