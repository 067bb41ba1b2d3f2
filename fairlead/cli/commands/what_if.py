"""The verb what-if: simulates the live cluster as it is and with changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import output
from fairlead.cli.comparison import Figures, finite, progress, table, write
from fairlead.cli.options import Json, client, parse_pairs
from fairlead.cli.text_tables import Column
from fairlead.errors import InvalidSpec

if TYPE_CHECKING:
    from fairlead.simulation.outcome import JobOutcome, Outcome
    from fairlead.simulation.trace import Trace

CHANGED = "+changes"
JOBS_SHOWN = 20


def what_if(
    add: Annotated[
        list[str] | None, typer.Option("--add", help="Additional devices: 8xa100, or 2x4xt4. Repeatable.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="A node to remove. Repeatable.")] = None,
    weights: Annotated[
        list[str] | None, typer.Option("--weights", help="Another weight of a tenant: tenant=2. Repeatable.")
    ] = None,
    policy: Annotated[str, typer.Option("--policy", help="One or more policies, comma-separated.")] = "fairlead",
    seed: Annotated[int, typer.Option("--seed", help="Random seed.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write plots and figures.json into this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Predict the running and waiting jobs with other devices, weights or policies. Needs an admin token.

    Runs in the local simulator, without further submissions; nothing changes on the platform.
    """
    from fairlead.simulation.live_trace import Changes, changed, read_state, trace_of

    changes = Changes(",".join(add or []), tuple(remove or []), _weights(weights))
    live = client().state()
    state = read_state(live.state)
    if not state.jobs:
        output.print_json({}) if as_json else output.line("no running or waiting jobs to simulate")
        return
    names = policy.split(",")
    work = trace_of(state, live.left)
    outcomes = _simulate(work, names, seed, out is not None, as_json)
    if changes.any:
        other = trace_of(changed(state, changes), live.left)
        outcomes |= {
            name + CHANGED: one for name, one in _simulate(other, names, seed, out is not None, as_json).items()
        }
    figures = {name: finite(outcome.figures()) for name, outcome in outcomes.items()}
    if out is not None:
        write(outcomes, figures, out, quiet=as_json)
    if as_json:
        output.print_json(figures)
    else:
        _show(work, outcomes, figures, live.guessed)


def _weights(given: list[str] | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, text in parse_pairs("--weights", given).items():
        try:
            found[name] = float(text)
        except ValueError:
            found[name] = 0.0
        if not 0 < found[name] <= 1e6:
            raise InvalidSpec(f"{text!r} is not a weight", field="--weights", fix="write a positive number: tenant=2")
    return found


def _simulate(trace: Trace, names: list[str], seed: int, draw: bool, quiet: bool) -> dict[str, Outcome]:
    from fairlead.simulation.engine import Settings
    from fairlead.simulation.runs import compare

    return compare(trace, names, settings=lambda: Settings(draw=draw), seed=seed, progress=progress(quiet))


def _show(trace: Trace, outcomes: dict[str, Outcome], figures: dict[str, Figures], guessed: list[str]) -> None:
    table(trace, sum(node.devices for node in trace.nodes), figures)
    output.line()
    output.line("time from now until each job ends:")
    begins_s = trace.begins_s or 0.0
    by_job: dict[str, list[Any]] = {}
    for outcome in outcomes.values():
        for job in outcome.jobs:
            by_job.setdefault(job.id, [job.id, job.tenant]).append(_when(job, begins_s))
    columns = [Column("JOB"), Column("TENANT"), *(Column(name, right=True) for name in outcomes)]
    output.table(columns, list(by_job.values())[:JOBS_SHOWN], empty="no jobs")
    if len(by_job) > JOBS_SHOWN:
        output.line(f"… and {len(by_job) - JOBS_SHOWN} more (--out writes all)")
    if guessed:
        some = ", ".join(guessed[:3]) + (" ..." if len(guessed) > 3 else "")
        output.line(f"unknown duration, assumed as usual: {some} (declare it with takes)", style="dim")


def _when(job: JobOutcome, begins_s: float) -> str:
    return output.duration(job.finished_s - begins_s)
