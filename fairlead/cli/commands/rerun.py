"""The verb rerun: runs a job again with the same code, data and seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from fairlead.cli import output
from fairlead.cli.commands.lineage import EXPECTED
from fairlead.cli.options import JobRef, Json, Watch, client

if TYPE_CHECKING:
    pass


def rerun(job: JobRef, watch: Watch = False, as_json: Json = False) -> None:
    """Run a job again with the same code, parameters, seed and data, and the same plan where it kept one.

    Prints what to expect, and why: identical weights, or the same weights except for rounding.
    """
    platform = client()
    answer = platform.rerun(job)
    if watch:
        from fairlead.cli.watch import watch as follow

        output.line(f"{answer.job.id} is a rerun of {answer.rerun_of}: {EXPECTED[answer.repeats]} ({answer.why})")
        raise typer.Exit(follow(platform.job(answer.job.id), as_json=as_json))
    if as_json:
        output.print_json(answer)
        return
    output.line(f"submitted {answer.job.name} ({answer.job.id}), a rerun of {answer.rerun_of}")
    output.line(f"  expected: {EXPECTED[answer.repeats]}: {output.clean(answer.why)}")
    output.line(f"  compare when it has ended: fairlead lineage {answer.job.id}", style="dim")
