"""The verb cancel: ends one job, or all jobs that match."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import output
from fairlead.cli.options import Json, Tenant, client, parse_pairs
from fairlead.errors import InvalidSpec

if TYPE_CHECKING:
    from fairlead.views.jobs import CancelledView

IDS_SHOWN = 5  # ids that are named


def cancel(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="Job id, its first characters, or a job's name.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All jobs of your tenant; as an admin, all jobs.")] = False,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", help="All jobs with this label: name=value. Repeatable.")
    ] = None,
    state: Annotated[
        str | None, typer.Option("--state", help="All jobs in this state: queued, or queued,running.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="All jobs of this name; * matches any characters.")] = None,
    tenant: Tenant = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the jobs that would be cancelled.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Cancel one job, or all jobs that match every given option. Snapshots and results so far are kept.

    Exit code 0 even if no job matches.
    """
    wanted = {"labels": parse_pairs("--label", label) or None, "state": state, "name": name, "tenant": tenant}
    selection = {key: value for key, value in wanted.items() if value is not None}
    if job is None and (everything or selection):
        _cancel_many({**selection, "all": everything or selection.keys() == {"tenant"}}, dry_run, yes, as_json)
        return
    if job is None or everything or selection or dry_run:
        problem = "no job named" if job is None else f"name either job {job!r} or options that select many, not both"
        raise InvalidSpec(problem, fix="name one job, or use --all, --label, --state, --name or --tenant")
    view = client().cancel(job).view
    if as_json:
        output.print_json(view)
    else:
        output.line(f"{view.name} ({view.id}) is {view.state}")


def _cancel_many(selection: dict[str, Any], dry_run: bool, yes: bool, as_json: bool) -> None:
    platform = client()
    if not (dry_run or yes or as_json) and sys.stdin.isatty() and sys.stdout.isatty():
        found = platform.cancel_jobs(**selection, dry_run=True)
        if found.cancelled:
            typer.confirm(f"cancel {'more than ' * found.more}{_count(found)}?", abort=True, err=True)
    done = platform.cancel_jobs(**selection, dry_run=dry_run)
    if as_json:
        output.print_json(done)
    elif done.cancelled:
        output.line(f"{_count(done)} would be cancelled" if dry_run else f"cancelled {_count(done)}")
        first = ", ".join(done.jobs[:IDS_SHOWN])
        rest = f" and {done.cancelled - IDS_SHOWN} more" if done.cancelled > IDS_SHOWN else ""
        output.line(f"  {first}{rest}", style="dim")
        if done.more:
            output.line("more jobs match: run the command again", style="yellow")
    else:
        output.line("no unfinished job matches")


def _count(found: CancelledView) -> str:
    return f"{found.cancelled} job{'' if found.cancelled == 1 else 's'}"
