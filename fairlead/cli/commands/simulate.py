"""``fairlead simulate``: policies side by side on a recorded workload, on a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import output
from fairlead.cli.comparison import finite, progress, table, write
from fairlead.cli.options import Json
from fairlead.errors import InvalidSpec

if TYPE_CHECKING:
    from fairlead.simulation.energy import Energy
    from fairlead.simulation.engine import Settings
    from fairlead.simulation.trace import Trace


def simulate(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="The file with the jobs.")],
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", help="8xv100,16xp100 (pools), 16x4xt4 (nodes x devices x type), or a YAML file."),
    ] = None,
    policy: Annotated[str, typer.Option("--policy", help="One or more, with commas between them.")] = "fairlead",
    form: Annotated[
        str,
        typer.Option(
            "--format", help="auto, gavel, shockwave, sia, pollux, elasticflow, tiresias, philly, sacct or csv."
        ),
    ] = "auto",
    speeds: Annotated[Path | None, typer.Option("--speeds", help="Table of speeds, or a folder of tables.")] = None,
    round_s: Annotated[
        float | None, typer.Option("--round", help="Seconds between decisions; default: as the format's simulator.")
    ] = None,
    restart_cost: Annotated[
        float | None, typer.Option("--restart-cost", help="Seconds a gang loses when it starts or moves.")
    ] = None,
    knowledge: Annotated[
        str, typer.Option("--knowledge", help="declared (work left is known) or learned (it is not).")
    ] = "declared",
    tenants: Annotated[
        str | None, typer.Option("--tenants", help="A CSV of name,weight,quota, or the trace's column to use.")
    ] = None,
    failures: Annotated[float | None, typer.Option("--failures", help="Mean hours between failures of a node.")] = None,
    what_if: Annotated[str | None, typer.Option("--what-if", help="Change the cluster: add:8xa100.")] = None,
    sleep_after: Annotated[
        float | None, typer.Option("--sleep-after", help="Let nodes sleep that were idle for so many seconds.")
    ] = None,
    wake_time: Annotated[float, typer.Option("--wake-time", help="Seconds until a sleeping node is awake.")] = 120.0,
    colocation: Annotated[
        Path | None,
        typer.Option("--colocation", help="A CSV of class,beside,slowdown: what jobs on one node cost each other."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of everything random.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write plots and the figures into this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Compare policies on a recorded workload: completion times, fairness, use of the devices, deadlines."""
    from fairlead.simulation.clusters import cluster as parse
    from fairlead.simulation.runs import compare, spread_over_tenants
    from fairlead.simulation.tenants import check_owners
    from fairlead.simulation.trace_reader import read_trace

    declared = _declared(knowledge)
    _positive("--round", round_s)
    _positive("--failures", failures)
    _positive("--restart-cost", restart_cost, or_0=True)
    _make_folder(out)
    owners, column = _tenants(tenants)
    named = None if cluster is None else parse(cluster)
    devices = None if named is None or what_if is not None else sum(node.devices for node in named)
    work = spread_over_tenants(read_trace(trace, form, speeds, tenant_column=column, devices=devices), owners)
    nodes = tuple(work.nodes) if named is None else named
    if what_if is not None:
        nodes = (*nodes, *_added(what_if, {node.name for node in nodes}))
    idle = check_owners(owners, work, nodes)
    settings = _settings(
        round_s=round_s, restart_cost_s=restart_cost, declared=declared, tenants=owners, draw=out is not None,
        energy=_energy(sleep_after, wake_time), colocation=_colocation(colocation),
    )  # fmt: skip
    outcomes = compare(
        work, policy.split(","), nodes, _with_failures(settings, failures, seed), seed=seed,
        progress=progress(as_json),
    )  # fmt: skip
    figures = {name: finite(outcome.figures()) for name, outcome in outcomes.items()}
    if out is not None:
        write(outcomes, figures, out, quiet=as_json)
    if as_json:
        output.print_json(figures)
    else:
        table(work, sum(node.devices for node in nodes), figures)
        _notes(work, idle)


def _notes(work: Trace, idle: list[str]) -> None:
    """What of the input had no part in it."""
    if work.left_out:
        rows = "1 row was" if work.left_out == 1 else f"{work.left_out} rows were"
        output.line(f"{rows} left out, without devices or time", style="dim")
    if idle:
        some = ", ".join(idle[:5]) + (" ..." if len(idle) > 5 else "")
        output.line(f"no job of this trace is of {some} (--tenants)", style="dim")


def _make_folder(out: Path | None) -> None:
    """Before anything is computed, so that nothing is computed for a folder that cannot be."""
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"{out} cannot be a folder: {error.strerror or error}"
        raise InvalidSpec(text, field="--out", fix="name a folder that can be made") from error


def _declared(knowledge: str) -> bool:
    if knowledge not in ("declared", "learned"):
        raise InvalidSpec(f"{knowledge!r} is not known", field="--knowledge", fix="declared or learned")
    return knowledge == "declared"


def _positive(option: str, value: float | None, *, or_0: bool = False) -> None:
    if value is not None and not (0 < value < math.inf or (or_0 and value == 0)):
        least = "0 or more" if or_0 else "more than 0"
        raise InvalidSpec(f"{value:g} is not {least}", field=option, fix=f"give a number of {least}")


def _energy(sleep_after: float | None, wake_time: float) -> Energy | None:
    from fairlead.simulation.energy import Energy

    _positive("--sleep-after", sleep_after)
    _positive("--wake-time", wake_time)
    return None if sleep_after is None else Energy(sleep_after, wake_time)


def _colocation(path: Path | None) -> dict[tuple[str, str], float] | None:
    from fairlead.simulation.interference import read_table

    return None if path is None else read_table(path)


def _tenants(text: str | None) -> tuple[list[Any], str | None]:
    """A file of tenants, or the name of the column that says whose a job is."""
    from fairlead.simulation.tenants import read_tenants

    if text is None:
        return [], None
    path = Path(text)
    if path.is_file():
        return read_tenants(path), None
    if path.suffix:
        raise InvalidSpec(f"there is no file {text}", field="--tenants", fix="name a CSV of name,weight,quota")
    return [], text


def _added(text: str, taken: set[str]) -> tuple[Any, ...]:
    from dataclasses import replace

    from fairlead.simulation.clusters import cluster

    verb, _, what = text.partition(":")
    if verb != "add" or not what:
        raise InvalidSpec(f"{text!r} is not understood", field="--what-if", fix="write add:8xa100")
    added = cluster(what, field="--what-if")
    return tuple(replace(node, name=f"added.{node.name}") if node.name in taken else node for node in added)


def _settings(**how: Any) -> Settings:
    from fairlead.simulation.engine import Settings

    return Settings(**how)


def _with_failures(settings: Settings, mtbf_h: float | None, seed: int) -> Callable[[], Settings]:
    """Settings for each policy: the same failures for all of them, from the same seed."""
    from dataclasses import replace

    from fairlead.simulation.failures import NoFailures, RandomFailures

    return lambda: replace(settings, outages=NoFailures() if mtbf_h is None else RandomFailures(mtbf_h, seed))
