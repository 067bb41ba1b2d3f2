"""The verb cancel: ends one job, or all jobs that match."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import output
from fairlead.cli.options import Json, Tenant, client, pairs
from fairlead.errors import InvalidSpec

if TYPE_CHECKING:
    from fairlead.views.jobs import CancelledView

FEW = 5  # ids that are named


def cancel(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="Id, the beginning of one, or name of a job.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All jobs: your tenant's, or as an admin all.")] = False,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", help="All with this label: name=value; can be repeated.")
    ] = None,
    state: Annotated[str | None, typer.Option("--state", help="All in this state: queued, or queued,running.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="All of this name; * stands for any letters.")] = None,
    tenant: Tenant = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many jobs that would be.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, in a terminal either.")] = False,
    as_json: Json = False,
) -> None:
    """End a job, or all jobs that fit every option given; what they have learnt so far is kept with their snapshots.

    Many are cancelled at once. Exit code 0 also when none fits.
    """
    wanted = {"labels": pairs("--label", label) or None, "state": state, "name": name, "tenant": tenant}
    meant = {key: value for key, value in wanted.items() if value is not None}
    if job is None and (everything or meant):
        _cancel_many({**meant, "all": everything or meant.keys() == {"tenant"}}, dry_run, yes, as_json)
        return
    if job is None or everything or meant or dry_run:
        said = "neither a job nor which jobs" if job is None else f"{job!r} is one job, and the options mean many"
        raise InvalidSpec(said, fix="name one job, or use --all, --label, --state, --name or --tenant")
    view = client().cancel(job).view
    if as_json:
        output.print_json(view)
    else:
        output.line(f"{view.name} ({view.id}) is {view.state}")


def _cancel_many(meant: dict[str, Any], dry_run: bool, yes: bool, as_json: bool) -> None:
    platform = client()
    if not (dry_run or yes or as_json) and sys.stdin.isatty() and sys.stdout.isatty():
        found = platform.cancel_jobs(**meant, dry_run=True)
        if found.cancelled:
            typer.confirm(f"cancel {'more than ' * found.more}{_jobs(found)}?", abort=True, err=True)
    done = platform.cancel_jobs(**meant, dry_run=dry_run)
    if as_json:
        output.print_json(done)
    elif done.cancelled:
        output.line(f"{_jobs(done)} would be cancelled" if dry_run else f"cancelled {_jobs(done)}")
        first = ", ".join(done.jobs[:FEW])
        rest = f" and {done.cancelled - FEW} more" if done.cancelled > FEW else ""
        output.line(f"  {first}{rest}", style="dim")
        if done.more:
            output.line("there are more of them: say it again", style="yellow")
    else:
        output.line("no job fits that has not ended")


def _jobs(found: CancelledView) -> str:
    return f"{found.cancelled} job{'' if found.cancelled == 1 else 's'}"
