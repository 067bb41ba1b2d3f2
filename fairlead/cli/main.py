"""The ``fairlead`` command: all verbs in one place. Whatever is heavy is imported by the verb that needs it."""

from __future__ import annotations

import gc
import io
import sys
from typing import Annotated

import typer

from fairlead.cli import completion
from fairlead.cli.commands import (
    backup,
    data,
    datasets,
    doctor,
    init,
    jobs,
    lineage,
    nodes,
    pipeline,
    plan,
    report,
    secret,
    simulate,
    submit,
    tenant,
    token,
    up,
    usage,
    whatif,
)
from fairlead.cli.errors import execute

app = typer.Typer(
    name="fairlead",
    help="One shared training cluster: fair, elastic, crash-safe.",
    rich_markup_mode=None,  # plain help: drawing it with rich would cost more than all the rest of --help
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        report.version()
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="The version.")] = False,
) -> None:
    """One shared training cluster: fair, elastic, crash-safe."""


app.command("init", short_help="Write a job.yaml and a train.py to begin with.")(init.init)
app.command("up")(up.up)
app.command("down", short_help="End the platform; jobs go on at the next start.")(up.down)
app.command("backup", short_help="Write this machine's platform into one file.")(backup.backup)
app.command("restore", short_help="Bring a platform back from a backup.")(backup.restore)
app.command("submit", short_help="Submit a job written in a YAML file.")(submit.submit)
app.command("run", short_help="Run a function or a command of this folder.")(submit.run)
app.command("queue")(jobs.queue)
app.command("logs")(jobs.logs)
app.command("why", short_help="Why a job waits, runs as it does, or ended so.")(jobs.why)
app.command("cancel", short_help="End a job, or many; snapshots are kept.")(submit.cancel)
app.command("result")(jobs.result)
app.command("metrics")(jobs.metrics)
app.command("lineage", short_help="Where a job's result came from.")(lineage.lineage)
app.command("rerun", short_help="Run a job once more, to get the same.")(lineage.rerun)
datasets.data.command("get", short_help="Get cifar10, bank, imdb or kdd99.")(data.get)
datasets.data.command("describe", short_help="Profile a file, folder or query.")(data.describe)
app.add_typer(datasets.data, name="data")
app.add_typer(pipeline.pipeline, name="pipeline")
app.add_typer(nodes.app, name="nodes")
app.add_typer(tenant.app, name="tenant")
app.command("tenants", short_help="Tenants: their weights, claims and devices.")(tenant.list_tenants)
app.add_typer(token.app, name="token")
app.add_typer(secret.secret, name="secret")
app.command("events")(report.events)
app.command("report")(report.report)
app.command("usage", short_help="What was used: device hours, cpu hours, jobs.")(usage.usage)
app.command("simulate", short_help="Compare policies on a recorded workload.")(simulate.simulate)
app.command("what-if", short_help="Play the live cluster forward, changed.")(whatif.what_if)
app.command("plan", short_help="Rank the ways to run a model in parallel.")(plan.plan)
app.command("profile", short_help="Measure what this node can do, once.")(plan.profile)
app.command("audit")(usage.audit)
app.command("doctor")(doctor.doctor)
app.command("whoami")(report.whoami)
app.command("completion")(completion.completion)
app.command("version")(report.version)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the console script."""
    gc.set_threshold(50_000)  # imports make many objects and little garbage: looking for it was a tenth of every verb
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal of old that has no … shall show the rest all the same
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == [completion.ASK]:
        sys.exit(completion.answer(app, given[1:]))
    sys.exit(execute(app, given or ["--help"]))


if __name__ == "__main__":
    main()
