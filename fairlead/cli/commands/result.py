"""The verb result: metrics and files of an ended job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli import output
from fairlead.cli.commands.why import plan_summary
from fairlead.cli.options import JobRef, Json, client

if TYPE_CHECKING:
    from fairlead.views.jobs import ResultView


FIGURES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "TT": ("training time", output.duration),
    "RU": ("utilisation", output.percent),
    "TP": ("throughput", lambda value: f"{output.number(value)} samples/s"),
    "FI": ("fairness index", output.number),
    "FRT": ("mean recovery time", output.duration),
    "SSR": ("SLA met", output.percent),
    "device_s": ("device time", output.duration),
}


def result(
    job: JobRef,
    download: Annotated[
        Path | None, typer.Option("--download", "-d", help="Download its files into this folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    as_json: Json = False,
) -> None:
    """Show an ended job's metrics and files. Exit code 100 if it failed, 101 if it still runs, 103 if cancelled.

    --download overwrites existing files only with --force. Files that cannot be downloaded are listed, and the exit
    code is 1.
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
    figures = [text for text in (_figure(*each) for each in answer.figures.items()) if text]
    if figures:
        output.line("  " + ", ".join(figures))
    if answer.plan is not None:
        output.line(f"  plan: {output.clean(plan_summary(answer.plan))}")
    if answer.artifacts:
        place = f"in {download}" if download else f"(fairlead result {answer.job} --download DIR)"
        downloaded = [name for name in answer.artifacts if name not in left_out]
        output.line(f"  files: {', '.join(downloaded) or 'none'} {place}")
    for name, now in getattr(answer, "renamed", {}).items():
        output.line(f"  {name!r} was saved as {now}")
    for name, why in left_out.items():
        output.line(f"  not downloaded: {name!r}: {output.clean(why)}", style="yellow")


def _figure(name: str, value: float | None) -> str:
    """A figure with its name and unit, such as ``utilisation 16 %``; empty when it is unknown."""
    title, show = FIGURES.get(name, (name, output.number))
    return "" if value is None else f"{title} {show(value)}"
