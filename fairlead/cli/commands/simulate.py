"""The verb simulate: compares policies on a recorded workload, on a virtual clock."""

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
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="File with the recorded jobs.")],
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", help="8xv100,16xp100 (pools), 16x4xt4 (nodes x devices x type), or a YAML file."),
    ] = None,
    policy: Annotated[str, typer.Option("--policy", help="One or more policies, comma-separated.")] = "fairlead",
    form: Annotated[
        str,
        typer.Option(
            "--format", help="auto, gavel, shockwave, sia, pollux, elasticflow, tiresias, philly, sacct or csv."
        ),
    ] = "auto",
    speeds: Annotated[
        Path | None, typer.Option("--speeds", help="File with job speeds per device type, or a folder of such files.")
    ] = None,
    round_s: Annotated[
        float | None, typer.Option("--round", help="Seconds between decisions; default: depends on the format.")
    ] = None,
    restart_cost: Annotated[
        float | None, typer.Option("--restart-cost", help="Seconds lost when a gang starts or moves.")
    ] = None,
    knowledge: Annotated[
        str, typer.Option("--knowledge", help="declared (the scheduler knows the work left) or learned.")
    ] = "declared",
    tenants: Annotated[
        str | None, typer.Option("--tenants", help="CSV of name,weight,quota, or a column of the trace.")
    ] = None,
    failures: Annotated[float | None, typer.Option("--failures", help="Mean hours between failures per node.")] = None,
    what_if: Annotated[str | None, typer.Option("--what-if", help="Change the cluster: add:8xa100.")] = None,
    sleep_after: Annotated[
        float | None, typer.Option("--sleep-after", help="Put nodes to sleep after this many idle seconds.")
    ] = None,
    wake_time: Annotated[float, typer.Option("--wake-time", help="Seconds that a node takes to wake.")] = 120.0,
    colocation: Annotated[
        Path | None,
        typer.Option("--colocation", help="CSV of class,beside,slowdown: slowdown of jobs that share a node."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Random seed.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write plots and figures.json into this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Compare policies on a recorded workload: completion times, fairness, utilisation, deadlines."""
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
    """Report rows and tenants of the input that were not used."""
    if work.left_out:
        rows = "1 row was" if work.left_out == 1 else f"{work.left_out} rows were"
        output.line(f"{rows} skipped: no devices or no duration", style="dim")
    if idle:
        some = ", ".join(idle[:5]) + (" ..." if len(idle) > 5 else "")
        output.line(f"tenants without jobs in this trace: {some} (--tenants)", style="dim")


def _make_folder(out: Path | None) -> None:
    """Create the folder before the simulation, so that a wrong path fails at once."""
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"cannot create {out}: {error.strerror or error}"
        raise InvalidSpec(text, field="--out", fix="name a writable folder") from error


def _declared(knowledge: str) -> bool:
    if knowledge not in ("declared", "learned"):
        raise InvalidSpec(
            f"{knowledge!r} is not a kind of knowledge", field="--knowledge", fix="use declared or learned"
        )
    return knowledge == "declared"


def _positive(option: str, value: float | None, *, or_0: bool = False) -> None:
    if value is not None and not (0 < value < math.inf or (or_0 and value == 0)):
        least = "0 or more" if or_0 else "more than 0"
        raise InvalidSpec(f"{value:g} is not {least}", field=option, fix=f"write a number: {least}")


def _energy(sleep_after: float | None, wake_time: float) -> Energy | None:
    from fairlead.simulation.energy import Energy

    _positive("--sleep-after", sleep_after)
    _positive("--wake-time", wake_time)
    return None if sleep_after is None else Energy(sleep_after, wake_time)


def _colocation(path: Path | None) -> dict[tuple[str, str], float] | None:
    from fairlead.simulation.interference import read_table

    return None if path is None else read_table(path)


def _tenants(text: str | None) -> tuple[list[Any], str | None]:
    """Tenants from a CSV file, or the name of the trace's column that holds the tenant."""
    from fairlead.simulation.tenants import read_tenants

    if text is None:
        return [], None
    path = Path(text)
    if path.is_file():
        return read_tenants(path), None
    if path.suffix:
        raise InvalidSpec(f"file {text} does not exist", field="--tenants", fix="name a CSV of name,weight,quota")
    return [], text


def _added(text: str, taken: set[str]) -> tuple[Any, ...]:
    from dataclasses import replace

    from fairlead.simulation.clusters import cluster

    verb, _, what = text.partition(":")
    if verb != "add" or not what:
        raise InvalidSpec(f"{text!r} is not a change of the cluster", field="--what-if", fix="write add:8xa100")
    added = cluster(what, field="--what-if")
    return tuple(replace(node, name=f"added.{node.name}") if node.name in taken else node for node in added)


def _settings(**how: Any) -> Settings:
    from fairlead.simulation.engine import Settings

    return Settings(**how)


def _with_failures(settings: Settings, mtbf_h: float | None, seed: int) -> Callable[[], Settings]:
    """Settings with the same random failures for every policy."""
    from dataclasses import replace

    from fairlead.simulation.failures import NoFailures, RandomFailures

    return lambda: replace(settings, outages=NoFailures() if mtbf_h is None else RandomFailures(mtbf_h, seed))
