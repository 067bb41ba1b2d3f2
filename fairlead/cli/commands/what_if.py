"""``fairlead what-if``: the live cluster played forward, as it is and as it would be with changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import output
from fairlead.cli.comparison import Figures, finite, progress, table, write
from fairlead.cli.options import Json, client, pairs
from fairlead.cli.text_tables import Column
from fairlead.errors import InvalidSpec

if TYPE_CHECKING:
    from fairlead.simulation.outcome import JobOutcome, Outcome
    from fairlead.simulation.trace import Trace

CHANGED = "+changes"
SHOWN = 20


def what_if(
    add: Annotated[
        list[str] | None, typer.Option("--add", help="Devices that would be there as well: 8xa100, or 2x4xt4.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="A node that would be gone.")] = None,
    weights: Annotated[
        list[str] | None, typer.Option("--weights", help="tenant=2: another weight of a tenant.")
    ] = None,
    policy: Annotated[str, typer.Option("--policy", help="One or more, with commas between them.")] = "fairlead",
    seed: Annotated[int, typer.Option("--seed", help="Of everything random.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write plots and the figures into this folder.")] = None,
    as_json: Json = False,
) -> None:
    """What would become of the jobs that run and wait now, with other devices, weights or policies; for an admin.

    It is computed here, in the simulator; nothing changes on the platform, and nobody else is expected to submit.
    """
    from fairlead.simulation.live_trace import Changes, changed, read_state, trace_of

    changes = Changes(",".join(add or []), tuple(remove or []), _weights(weights))
    told = client().state()
    state = read_state(told.state)
    if not state.jobs:
        output.print_json({}) if as_json else output.line("no jobs run or wait: there is nothing to play forward")
        return
    names = policy.split(",")
    work = trace_of(state, told.left)
    outcomes = _played(work, names, seed, out is not None, as_json)
    if changes.any:
        other = trace_of(changed(state, changes), told.left)
        outcomes |= {name + CHANGED: one for name, one in _played(other, names, seed, out is not None, as_json).items()}
    figures = {name: finite(outcome.figures()) for name, outcome in outcomes.items()}
    if out is not None:
        write(outcomes, figures, out, quiet=as_json)
    if as_json:
        output.print_json(figures)
    else:
        _shown(work, outcomes, figures, told.guessed)


def _weights(given: list[str] | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, text in pairs("--weights", given).items():
        try:
            found[name] = float(text)
        except ValueError:
            found[name] = 0.0
        if not 0 < found[name] <= 1e6:
            raise InvalidSpec(f"{text} is not a weight", field="--weights", fix="write tenant=2")
    return found


def _played(trace: Trace, names: list[str], seed: int, draw: bool, quiet: bool) -> dict[str, Outcome]:
    from fairlead.simulation.engine import Settings
    from fairlead.simulation.runs import compare

    return compare(trace, names, settings=lambda: Settings(draw=draw), seed=seed, progress=progress(quiet))


def _shown(trace: Trace, outcomes: dict[str, Outcome], figures: dict[str, Figures], guessed: list[str]) -> None:
    table(trace, sum(node.devices for node in trace.nodes), figures)
    output.line()
    output.line("and how long from now each job takes until it is done:")
    begins_s = trace.begins_s or 0.0
    by_job: dict[str, list[Any]] = {}
    for outcome in outcomes.values():
        for job in outcome.jobs:
            by_job.setdefault(job.id, [job.id, job.tenant]).append(_when(job, begins_s))
    columns = [Column("JOB"), Column("TENANT"), *(Column(name, right=True) for name in outcomes)]
    output.table(columns, list(by_job.values())[:SHOWN], empty="no jobs")
    if len(by_job) > SHOWN:
        output.line(f"… and {len(by_job) - SHOWN} more (--out writes them all)")
    if guessed:
        some = ", ".join(guessed[:3]) + (" ..." if len(guessed) > 3 else "")
        output.line(
            f"nobody knows how long {some} will take: as long as usual was taken (say it with takes)", style="dim"
        )


def _when(job: JobOutcome, begins_s: float) -> str:
    return output.duration(job.finished_s - begins_s)
