"""Submits a job, or asks what would happen to it, for the verbs submit and run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairlead.cli import output

if TYPE_CHECKING:
    from fairlead.sdk.client import Client
    from fairlead.sdk.requests import What


def submit_job(
    platform: Client, what: What, folder: Path | None, fields: dict[str, Any], watch: bool, dry_run: bool, as_json: bool
) -> None:
    if dry_run:
        _show_dry_run(platform, what, folder, fields, as_json)
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
        output.line(f"  warning: {output.clean(job.view.promise.reason.text)}")
    output.line(f"  follow: fairlead logs {job.id} -f    explain: fairlead why {job.id}", style="dim")


def _show_dry_run(platform: Client, what: What, folder: Path | None, fields: dict[str, Any], as_json: bool) -> None:
    answer = platform.dry_run(what, folder=folder, **fields)
    if as_json:
        output.print_json(answer)
    elif answer.admitted:
        begins = output.ahead(answer.expected_start_s)
        output.line(f"would be admitted{'' if begins == 'now' else ' and wait'}: {output.clean(answer.reason.text)}")
        where = ", ".join(dict.fromkeys(answer.nodes)) or "not decided yet"
        output.line(f"  nodes: {where}    starts: {begins}    ends: {output.ahead(answer.expected_finish_s)}")
        if answer.promise is not None:
            output.line(f"  SLA: {output.clean(answer.promise.reason.text)}")
    else:
        output.line(f"would be refused: {answer.reason.text}")
    if not answer.admitted:
        raise typer.Exit(4)
