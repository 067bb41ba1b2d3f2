"""The verb run: submits a function or a command of a folder without a YAML file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.options import DryRun, Folder, Json, Tenant, Watch, client, pairs, plain_value, sla
from fairlead.cli.submission import submit_job
from fairlead.errors import InvalidSpec

if TYPE_CHECKING:
    from fairlead.sdk.requests import What

_FUNCTION = re.compile(r"^[\w./-]+:[A-Za-z_]\w*$")


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
    meant = _parse_target(what)
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
    submit_job(client(), meant, folder, fields, watch, dry_run, as_json)


def _parse_target(words: list[str]) -> What:
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
