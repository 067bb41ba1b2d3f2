"""The verb metrics: a job's history per step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli import output
from fairlead.cli.options import JobRef, Json, client
from fairlead.cli.text_tables import Column, most_columns

if TYPE_CHECKING:
    pass


def metrics(
    job: JobRef,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=1, help="Only the last N steps.")] = None,
    as_json: Json = False,
) -> None:
    """Show a job's metrics per step: the last 20 steps.

    With --json all steps.
    """
    steps = client().metrics(job)
    if as_json:
        output.print_json({"job": job, "steps": steps[-tail:] if tail else steps})
        return
    tail = tail or 20
    names = list(dict.fromkeys(name for step in steps for name in step))
    shown = names[: most_columns(output.screen().columns)]
    rows = ([_figure(name, step.get(name)) for name in shown] for step in steps[-tail:])
    output.table([Column(name, right=True) for name in shown], rows, empty="no steps yet")
    if len(steps) > tail:
        output.line(f"the last {tail} of {len(steps)} steps")
    if len(names) > len(shown):
        output.line(f"the first {len(shown)} of {len(names)} metrics (--json shows all)")


def _figure(name: str, value: float | None) -> str:
    """A metric as text; ``time_s`` (seconds since 1970) becomes the time of day with milliseconds."""
    if name != "time_s" or value is None or not abs(value) < 1e11:
        return output.number(value, 5)
    return f"{output.when(value)}.{int(value % 1 * 1000):03d}"
