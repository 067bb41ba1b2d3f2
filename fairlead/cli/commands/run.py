"""The verb run: submits a function or a command of a folder without a YAML file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.options import DryRun, Folder, Json, Tenant, Watch, client, parse_pairs, parse_sla, parse_value
from fairlead.cli.submission import submit_job
from fairlead.errors import InvalidSpec

if TYPE_CHECKING:
    from fairlead.sdk.requests import What

_FUNCTION = re.compile(r"^[\w./-]+:[A-Za-z_]\w*$")


def run(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE.PY:FUNCTION | -- COMMAND ...",
            help="A function that returns a fairlead.Training, or any command after two dashes.",
        ),
    ],
    workers: Annotated[
        str | None, typer.Option("--workers", help="Number of workers: 4, or 1:4 to grow and shrink.")
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", help="Argument of the function: name=value. Repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The job's name.")] = None,
    tenant: Tenant = None,
    priority: Annotated[
        int | None, typer.Option("--priority", help="-1000 to 1000; higher runs first within its tenant.")
    ] = None,
    workload: Annotated[str | None, typer.Option("--workload", help="training, tuning, inference or batch.")] = None,
    takes: Annotated[
        str | None, typer.Option("--takes", help="Estimated run time with the fewest workers: 20m.")
    ] = None,
    promise: Annotated[
        str | None, typer.Option("--sla", help="gold, silver, bronze, or a deadline such as 30m.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", help="Environment variable of the workers: NAME=value.")
    ] = None,
    cpu: Annotated[float | None, typer.Option("--cpu", help="Cores per worker.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory per worker, such as 2GB.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="Device type, such as cpu.")] = None,
    retries: Annotated[
        int | None, typer.Option("--retries", help="Restarts after a failure of the job itself.")
    ] = None,
    venv: Annotated[Path | None, typer.Option("--venv", help="Virtual environment on the platform's machine.")] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", help="Label for filters and usage reports: name=value.")
    ] = None,
    folder: Folder = None,
    watch: Watch = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Submit a function or a command of the current folder, without a YAML file.

    The folder is uploaded, except for files named in .fairleadignore. A missing function or virtual environment is
    refused at once.
    """
    target = _parse_target(what)
    resources = {"cpu": cpu, "memory": memory, "device": device}
    fields = {
        "workers": workers,
        "name": name,
        "tenant": tenant,
        "priority": priority,
        "workload": workload,
        "takes": takes,
        "sla": parse_sla(promise),
        "retries": retries,
        "venv": str(venv.expanduser().absolute()) if venv else None,
        "labels": parse_pairs("--label", label) or None,
        "env": parse_pairs("--env", env) or None,
        "params": {key: parse_value(text) for key, text in parse_pairs("--param", param).items()} or None,
        "resources": {key: value for key, value in resources.items() if value is not None} or None,
    }
    submit_job(client(), target, folder, fields, watch, dry_run, as_json)


def _parse_target(words: list[str]) -> What:
    """A function (``file.py:name``) or a command; a bare file name is refused with advice."""
    if len(words) > 1:
        if _FUNCTION.match(words[0]) and words[0].rpartition(":")[0].endswith(".py"):
            fix = f"pass arguments by name: fairlead run {words[0]} --param name=value"
            raise InvalidSpec(f"{words[1]!r} follows a function, which takes no positional arguments", fix=fix)
        return words
    if _FUNCTION.match(words[0]):
        return words[0]
    if words[0].endswith((".py", ".yaml", ".yml")):
        instead = f"fairlead run {words[0]}:FUNCTION, or fairlead run -- python {words[0]}"
        if not words[0].endswith(".py"):
            instead = f"fairlead submit {words[0]}"
        raise InvalidSpec(f"{words[0]!r} is a file; name the function or command to run", fix=instead)
    return words
