"""The ``fairlead`` command: registers every verb. Each verb imports heavy modules only when it runs."""

from __future__ import annotations

import gc
import io
import sys
from typing import Annotated

import typer

from fairlead.cli import shell_completion
from fairlead.cli.commands import (
    audit,
    backup,
    cancel,
    completion,
    data,
    doctor,
    down,
    events,
    init,
    lineage,
    logs,
    metrics,
    nodes,
    pipeline,
    plan,
    profile,
    queue,
    report,
    rerun,
    restore,
    result,
    run,
    secret,
    simulate,
    submit,
    tenant,
    token,
    up,
    usage,
    version,
    what_if,
    whoami,
    why,
)
from fairlead.cli.errors import execute

app = typer.Typer(
    name="fairlead",
    help="One shared training cluster: fair, elastic, crash-safe.",
    rich_markup_mode=None,  # rendering help with rich would take longer than the rest of --help
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        version.version()
        raise typer.Exit


@app.callback()
def _options(
    version_: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One shared training cluster: fair, elastic, crash-safe."""


app.command("init", short_help="Write a job.yaml and a train.py to start from.")(init.init)
app.command("up")(up.up)
app.command("down", short_help="Stop the platform; unfinished jobs resume at the next up.")(down.down)
app.command("backup", short_help="Write this machine's platform into one file.")(backup.backup)
app.command("restore", short_help="Restore a platform from a backup.")(restore.restore)
app.command("submit", short_help="Submit a job written in a YAML file.")(submit.submit)
app.command("run", short_help="Run a function or a command of this folder as a job.")(run.run)
app.command("queue")(queue.queue)
app.command("logs")(logs.logs)
app.command("why", short_help="Explain why a job waits, runs as it does, or ended.")(why.why)
app.command("cancel", short_help="Cancel one job, or all that match; snapshots are kept.")(cancel.cancel)
app.command("result")(result.result)
app.command("metrics")(metrics.metrics)
app.command("lineage", short_help="Show the data, code and settings behind a job's result.")(lineage.lineage)
app.command("rerun", short_help="Run a job again and compare the weights.")(rerun.rerun)
app.add_typer(data.app, name="data")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(nodes.app, name="nodes")
app.add_typer(tenant.app, name="tenant")
app.command("tenants", short_help="List tenants with weight, entitlement and devices in use.")(tenant.list_tenants)
app.add_typer(token.app, name="token")
app.add_typer(secret.app, name="secret")
app.command("events")(events.events)
app.command("report")(report.report)
app.command("usage", short_help="Show device hours, CPU hours and jobs, by tenant or user.")(usage.usage)
app.command("simulate", short_help="Compare policies on a recorded workload.")(simulate.simulate)
app.command("what-if", short_help="Simulate the live cluster with changes.")(what_if.what_if)
app.command("plan", short_help="Rank the ways to run a model in parallel.")(plan.plan)
app.command("profile", short_help="Measure the speed of this node.")(profile.profile)
app.command("audit")(audit.audit)
app.command("doctor")(doctor.doctor)
app.command("whoami")(whoami.whoami)
app.command("completion")(completion.completion)
app.command("version")(version.version)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the console script."""
    gc.set_threshold(50_000)  # imports create little garbage: collecting it took a tenth of every verb's time
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without … still shows the rest
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == [shell_completion.ASK]:
        sys.exit(shell_completion.answer(app, given[1:]))
    sys.exit(execute(app, given or ["--help"]))


if __name__ == "__main__":
    main()
