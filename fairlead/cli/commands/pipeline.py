"""The verb pipeline: runs, shows, lists and cancels graphs of stages."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli import output
from fairlead.cli.options import Folder, Json, Tenant, client, parse_pairs, parse_value
from fairlead.cli.text_tables import Column
from fairlead.errors import FairleadError, StillRunning
from fairlead.units import shown_size

if TYPE_CHECKING:
    from fairlead.sdk.pipelines import PipelineRun
    from fairlead.views.pipelines import PipelineDetail, StageView

app = typer.Typer(help="Run, show, list and cancel graphs of stages.", rich_markup_mode=None)

PipelineRef = Annotated[str, typer.Argument(metavar="PIPELINE", help="Pipeline id, its first characters, or a name.")]
POLL_S = 0.3
LONGEST_RESULT = 72  # characters shown; the dashboard and --json show all


@app.command("run")
def run(
    what: Annotated[str, typer.Argument(metavar="FILE.py:PIPELINE|FILE.yaml", help="The pipeline to run.")],
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", help="Parameter of the pipeline: name=value. Repeatable.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The pipeline's name; default: the function's name.")
    ] = None,
    folder: Folder = None,
    tenant: Tenant = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show progress until it has ended.")] = False,
    as_json: Json = False,
) -> None:
    """Run a pipeline: a function marked with @pipeline, or a YAML file. Uploads the folder as its code."""
    params = {key: parse_value(text) for key, text in parse_pairs("--param", param).items()}
    given = _parse_target(what)
    made = client().run_pipeline(given, folder=folder, tenant=tenant, name=name, **params)
    if watch:
        raise typer.Exit(_watch(made, as_json))
    if as_json:
        output.print_json(made.view)
        return
    output.line(f"submitted {made.view.name} ({made.id}) for {made.view.tenant}: {len(made.view.stages)} stages")
    output.line(f"  follow: fairlead pipeline show {made.id}", style="dim")


@app.command("show")
def show_pipeline(ref: PipelineRef, as_json: Json = False) -> None:
    """Show the stages of a pipeline, each with its state and result."""
    view = client().pipeline_detail(ref)
    if as_json:
        output.print_json(view)
    else:
        _draw(view)


@app.command("list")
def list_pipelines(
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Maximum number of pipelines.")] = 20,
    as_json: Json = False,
) -> None:
    """List the newest pipelines."""
    found = client().pipelines(tenant=tenant, limit=limit)
    if as_json:
        output.print_json({"pipelines": found})
        return
    columns = [Column("NAME", spare=True), Column("ID", ends=6), Column("TENANT"), Column("STATE"), Column("STAGES"),
               Column("ELAPSED", right=True)]  # fmt: skip
    rows = [[each.name, each.id, each.tenant, output.state(each.state), _counts(each.counts),
             output.duration((each.finished_s or time.time()) - each.submitted_s)] for each in found]  # fmt: skip
    output.table(columns, rows, empty="no pipelines; run one: fairlead pipeline run file.py:pipeline")


@app.command("cancel")
def cancel(ref: PipelineRef, as_json: Json = False) -> None:
    """Cancel a pipeline: stops its running stages and starts no others."""
    view = client().cancel_pipeline(ref).view
    if as_json:
        output.print_json(view)
    else:
        output.line(f"{view.name} ({view.id}) is being cancelled")


def _parse_target(what: str) -> str | Path:
    return Path(what) if what.endswith((".yaml", ".yml")) else what


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def _draw(view: PipelineDetail) -> None:
    took_s = (view.finished_s or time.time()) - view.submitted_s
    word = "for" if view.finished_s is None else "after"
    output.line(f"{view.name} ({view.id}) of tenant {view.tenant}: {view.state} {word} {output.duration(took_s)}")
    if view.message:
        output.line(f"  {output.clean(view.message)}")
    columns = [Column("STAGE"), Column("KIND", from_width=110), Column("STATE"), Column("TIME", right=True),
               Column("DEPENDS ON", from_width=140), Column("JOB", from_width=130),
               Column("RESULT", grows=True)]  # fmt: skip
    output.table(columns, [_row(stage) for stage in view.stages], empty="no stages")


def _row(stage: StageView) -> list[object]:
    took = "" if stage.started_s is None else output.duration((stage.finished_s or time.time()) - stage.started_s)
    return [stage.name, stage.kind, output.state(stage.state), took if stage.state != "cached" else "",
            ", ".join(stage.upstream), stage.job or "", output.clean(_result(stage))]  # fmt: skip


def _result(stage: StageView) -> str:
    """The stage's result, with the pipeline that computed it if it was cached; or why it failed."""
    if stage.state in ("failed", "skipped"):
        return stage.message or ""
    gave = stage.gave or ""
    gave = gave if len(gave) <= LONGEST_RESULT else f"{gave[: LONGEST_RESULT - 1]}…"
    size = f", {shown_size(stage.gave_bytes)}" if stage.gave_bytes else ""
    return f"{gave}{size}" + (f" (from {stage.reused})" if stage.state == "cached" else "")


def _watch(made: PipelineRun, as_json: bool) -> int:
    """Print a line whenever a stage changes state; Ctrl-C stops watching, not the pipeline."""
    from fairlead.sdk.pipelines import check

    states: dict[str, str] = {}
    try:
        while True:
            for stage in made.view.stages:
                if states.get(stage.name) != stage.state and not as_json and stage.state != "waiting":
                    more = f"  {output.clean(stage.message or '')}" if stage.state in ("failed", "skipped") else ""
                    output.line(f"{output.when(time.time())} {stage.name}: {stage.state}{more}")
                states[stage.name] = stage.state
            if made.ended:
                break
            time.sleep(POLL_S)
            made.refresh()
    except KeyboardInterrupt:
        output.line()
        output.line(f"{made.view.name} keeps running; follow: fairlead pipeline show {made.id}")
        return StillRunning.exit_code
    if as_json:
        output.print_json(made.view)
    else:
        _draw(made.view)
    try:
        check(made.view)
    except FairleadError as error:
        return error.exit_code
    return 0
