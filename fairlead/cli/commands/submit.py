"""The verb submit: submits a job written in a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.options import DryRun, Folder, Json, Tenant, Watch, client
from fairlead.cli.submission import submit_job
from fairlead.errors import InvalidSpec, NotFound

if TYPE_CHECKING:
    pass


def submit(
    file: Annotated[Path, typer.Argument(metavar="JOB.YAML", help="The job's YAML file.")],
    watch: Watch = False,
    dry_run: DryRun = False,
    folder: Folder = None,
    name: Annotated[str | None, typer.Option("--name", help="Replaces the name in the file.")] = None,
    tenant: Tenant = None,
    as_json: Json = False,
) -> None:
    """Submit a job written in a YAML file. Its folder is uploaded as the job's code."""
    if file.is_dir():
        raise InvalidSpec("is a folder", field=str(file), fix="name the YAML file of the job")
    if not file.exists():
        raise NotFound("there is no such file", field=str(file), fix="name the YAML file of the job")
    submit_job(client(), file, folder, {"name": name, "tenant": tenant}, watch, dry_run, as_json)
