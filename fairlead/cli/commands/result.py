"""The verb result: metrics and files of an ended job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli import output
from fairlead.cli.commands.why import plan_summary
from fairlead.cli.options import JobRef, Json, client

if TYPE_CHECKING:
    from fairlead.views.jobs import ResultView


def result(
    job: JobRef,
    download: Annotated[Path | None, typer.Option("--download", "-d", help="Put its files into this folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    as_json: Json = False,
) -> None:
    """What an ended job left behind. Exit code 100 if it failed, 101 if it still runs, 103 if it was cancelled.

    With --download nothing that is there is replaced, unless --force says so. Files that the platform does not give
    are left out and named, and the exit code is 1.
    """
    platform = client()
    answer = platform.result(job, download=download, force=force)
    left_out: dict[str, str] = getattr(answer, "left_out", {})
    if as_json:
        output.print_json(answer)
    else:
        _result(answer, download, left_out)
    code = {"failed": 100, "cancelled": 103}.get(answer.state, 1 if left_out else 0)
    if code:
        raise typer.Exit(code)


def _result(answer: ResultView, download: Path | None, left_out: dict[str, str]) -> None:
    output.line(f"{answer.spec.get('name', answer.job)} ({answer.job}) {answer.state}")
    if answer.message:
        output.line(f"  {output.clean(answer.message)}")
    for name, value in answer.metrics.items():
        output.line(f"  {name:<20} {output.number(value, 4)}")
    told = {name: value for name, value in answer.figures.items() if value is not None}
    if told:
        output.line("  " + "  ".join(f"{name} {output.number(value)}" for name, value in told.items()))
    if answer.plan is not None:
        output.line(f"  plan: {output.clean(plan_summary(answer.plan))}")
    if answer.artifacts:
        place = f"in {download}" if download else f"(fairlead result {answer.job} --download DIR)"
        given = [name for name in answer.artifacts if name not in left_out]
        output.line(f"  files: {', '.join(given) or 'none'} {place}")
    for name, now in getattr(answer, "renamed", {}).items():
        output.line(f"  {name!r} is called {now} here")
    for name, why in left_out.items():
        output.line(f"  left out: {name!r}: {output.clean(why)}", style="yellow")
