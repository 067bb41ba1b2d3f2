"""The verb events: what happened on the platform, with reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli import output
from fairlead.cli.options import Json, client
from fairlead.cli.text_tables import Column

if TYPE_CHECKING:
    from fairlead.views.jobs import EventView


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new events.")] = False,
    job: Annotated[str | None, typer.Option("--job", help="Only events of this job.")] = None,
    after: Annotated[int | None, typer.Option("--after", min=0, help="Only events after this id.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Maximum number of events.")] = 20,
    as_json: Json = False,
) -> None:
    """List the newest events, with reasons. With --json -f one object per line."""
    platform = client()
    after = -limit if after is None else after  # the newest, with the oldest of them first
    if not follow:
        found = list(platform.events(after=after, limit=limit, job=job))
        if as_json:
            output.print_json({"events": found})
            return
        columns = [Column("ID", right=True), Column("TIME"), Column("KIND"), Column("EVENT", grows=True)]
        rows = ([event.id, output.when(event.time_s), event.kind, event.text] for event in found)
        output.table(columns, rows, empty="no events")
        return
    try:
        for event in platform.events(after=after, job=job, follow=True):
            output.print_json(event) if as_json else _line(event)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _line(event: EventView) -> None:
    output.line(f"{event.id:>6}  {output.when(event.time_s)}  {event.kind:<18}  {output.clean(event.text)}")
