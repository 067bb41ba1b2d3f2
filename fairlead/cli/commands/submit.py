"""Verbs that hand work over or take it back: submit, run, cancel."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import output
from fairlead.cli.options import DryRun, Folder, Json, Tenant, Watch, client, pairs, plain_value, sla
from fairlead.errors import InvalidSpec, NotFound

if TYPE_CHECKING:
    from fairlead.sdk.client import Client
    from fairlead.sdk.requests import What
    from fairlead.views.jobs import CancelledView

FEW = 5  # ids that are named
_FUNCTION = re.compile(r"^[\w./-]+:[A-Za-z_]\w*$")


def submit(
    file: Annotated[Path, typer.Argument(metavar="JOB.YAML", help="The job's spec.")],
    watch: Watch = False,
    dry_run: DryRun = False,
    folder: Folder = None,
    name: Annotated[str | None, typer.Option("--name", help="Instead of the name in the file.")] = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> None:
    """Submit a job written in a file; its folder goes along as the job's code."""
    if file.is_dir():
        raise InvalidSpec("is a folder", field=str(file), fix="name the YAML file of the job")
    if not file.exists():
        raise NotFound("there is no such file", field=str(file), fix="name the YAML file of the job")
    _hand_over(client(), file, folder, {"name": name, "tenant": tenant}, watch, dry_run, as_json)


def run(
    what: Annotated[
        list[str], typer.Argument(metavar="FILE.PY:FUNCTION | -- COMMAND ...", help="A function that returns a "
                                  "fairlead.Training, or any command after two dashes.")],
    workers: Annotated[str | None, typer.Option("--workers", help="How many: 4, or 1:4 to grow and shrink.")] = None,
    param: Annotated[list[str] | None, typer.Option("--param", "-p", help="name=value for the function.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The job's name.")] = None,
    tenant: Tenant = None,
    priority: Annotated[int | None, typer.Option("--priority", help="-1000 to 1000; more is sooner.")] = None,
    workload: Annotated[str | None, typer.Option("--workload", help="training, tuning, inference or batch.")] = None,
    takes: Annotated[str | None, typer.Option("--takes", help="About how long with the fewest workers: 20m.")] = None,
    promise: Annotated[str | None, typer.Option("--sla", help="gold, silver, bronze, or done within: 30m.")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=value for the workers.")] = None,
    cpu: Annotated[float | None, typer.Option("--cpu", help="Cores per worker.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory per worker, such as 2GB.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="Type of device, such as cpu.")] = None,
    retries: Annotated[int | None, typer.Option("--retries", help="Times to try again after a failure.")] = None,
    venv: Annotated[Path | None, typer.Option("--venv", help="A virtual environment where the platform is.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", "-l", help="name=value, yours to use.")] = None,
    folder: Folder = None,
    watch: Watch = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Run a function or a command of the present folder: the short form of submit.

    The folder goes along, but for what .fairleadignore files name. A function that is not in its file, and a virtual
    environment that is not there, are refused at once.
    """
    meant = _meant(what)
    resources = {"cpu": cpu, "memory": memory, "device": device}
    fields = {
        "workers": workers,
        "name": name,
        "tenant": tenant,
        "priority": priority,
        "workload": workload,
        "takes": takes,
        "sla": sla(promise),
        "retries": retries,
        "venv": str(venv.expanduser().absolute()) if venv else None,
        "labels": pairs("--label", label) or None,
        "env": pairs("--env", env) or None,
        "params": {key: plain_value(text) for key, text in pairs("--param", param).items()} or None,
        "resources": {key: value for key, value in resources.items() if value is not None} or None,
    }
    _hand_over(client(), meant, folder, fields, watch, dry_run, as_json)


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


def _meant(words: list[str]) -> What:
    """A function when it looks like one, else a command; a bare file is neither."""
    if len(words) > 1:
        if _FUNCTION.match(words[0]) and words[0].rpartition(":")[0].endswith(".py"):
            fix = f"hand values over by name: fairlead run {words[0]} --param name=value"
            raise InvalidSpec(f"{words[1]!r} comes after a function, which takes no further words", fix=fix)
        return words
    if _FUNCTION.match(words[0]):
        return words[0]
    if words[0].endswith((".py", ".yaml", ".yml")):
        instead = f"fairlead run {words[0]}:FUNCTION, or fairlead run -- python {words[0]}"
        if not words[0].endswith(".py"):
            instead = f"fairlead submit {words[0]}"
        raise InvalidSpec(f"{words[0]!r} names a file, not what to run in it", fix=instead)
    return words


def _hand_over(
    platform: Client, what: What, folder: Path | None, fields: dict[str, Any], watch: bool, dry_run: bool, as_json: bool
) -> None:
    if dry_run:
        _rehearse(platform, what, folder, fields, as_json)
        return
    job = platform.submit(what, folder=folder, **fields)
    if watch:
        from fairlead.cli.watch import watch as follow

        raise typer.Exit(follow(job, as_json=as_json))
    if as_json:
        output.print_json(job.view)
        return
    output.line(f"submitted {job.name} ({job.id}) for {job.view.tenant}: {job.state}")
    if job.view.promise is not None and job.view.promise.kept is not True:
        output.line(f"  note: {output.clean(job.view.promise.reason.text)}")
    output.line(f"  follow it: fairlead logs {job.id} -f    why it waits: fairlead why {job.id}", style="dim")


def _rehearse(platform: Client, what: What, folder: Path | None, fields: dict[str, Any], as_json: bool) -> None:
    answer = platform.dry_run(what, folder=folder, **fields)
    if as_json:
        output.print_json(answer)
    elif answer.admitted:
        begins = output.ahead(answer.expected_start_s)
        output.line(f"would be admitted{'' if begins == 'now' else ', and wait'}: {output.clean(answer.reason.text)}")
        where = ", ".join(dict.fromkeys(answer.nodes)) or "not known yet"
        output.line(f"  where: {where}    starts: {begins}    done: {output.ahead(answer.expected_finish_s)}")
        if answer.promise is not None:
            output.line(f"  promise: {output.clean(answer.promise.reason.text)}")
    else:
        output.line(f"would be refused: {answer.reason.text}")
    if not answer.admitted:
        raise typer.Exit(4)
