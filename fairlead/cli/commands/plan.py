"""The verb plan: ranks the ways to run a model in parallel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import output
from fairlead.cli.options import HomeDir, Json, parse_pairs, parse_value
from fairlead.cli.plan_measurement import Trials, parse_link, run_trials
from fairlead.cli.text_tables import Column
from fairlead.errors import InvalidSpec, Refused
from fairlead.home import Home, default_home
from fairlead.units import shown_size

if TYPE_CHECKING:
    from fairlead.planning.cost import Estimate
    from fairlead.planning.profiles import Hardware, Link, ModelProfile
    from fairlead.profiling.plan_trials import Trial


def plan(
    run: Annotated[
        str, typer.Argument(metavar="FILE.py:FUNCTION", help="The function that returns a fairlead.Training.")
    ],
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Number of workers; default: all devices.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", help="2x4xa100 (nodes x devices x type) or a YAML file; default: this machine."),
    ] = None,
    link: Annotated[str | None, typer.Option("--link", help="Network between workers: 200mbit or 1gbit,1ms.")] = None,
    speeds: Annotated[str | None, typer.Option("--speeds", help="Relative speeds of the workers: 2,1.")] = None,
    measure: Annotated[
        str | None, typer.Option("--measure", help="Also run the best N candidates (or all) and compare.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps per measured candidate.")] = 20,
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", help="Argument of the function: name=value. Repeatable.")
    ] = None,
    home: HomeDir = None,
    as_json: Json = False,
) -> None:
    """Rank the ways to run a model in parallel, each with its step time, memory, bottleneck and reason."""
    from fairlead.planning.plan_reasons import explain_plans
    from fairlead.planning.search import candidates
    from fairlead.profiling.analysis_client import ask_for_profile

    place = Home(home or default_home())
    hardware = _hardware(place, workers, cluster, link, speeds)
    _check_measure(measure, cluster)
    params = {key: parse_value(text) for key, text in parse_pairs("--param", param).items()}
    model = ask_for_profile(run, params, device=None if cluster else "cpu")
    model = _corrected(place, model)
    found = candidates(model, hardware, on_paper=cluster is not None)
    if not found[0].fits:
        raise _too_large(found[0], hardware)
    trials = Trials(run, params, steps, model, place, link, speeds)
    measured = run_trials(trials, found, hardware, measure, quiet=as_json) if measure else {}
    rows = [_row(one, why, measured.get(one.plan.id)) for one, why in zip(found, explain_plans(found), strict=True)]
    if all(row["id"] != "ddp" for row in rows):  # scripts rely on a ddp row
        rows += [
            row | {"id": "ddp", "reason": "one worker: the same as one process"} for row in rows if _is_single(row)
        ]
    if as_json:
        output.print_json({"chosen": found[0].plan.id, "candidates": rows})
    else:
        _print(rows, model, len(hardware.seats))


def _hardware(place: Home, workers: int | None, cluster: str | None, link: str | None, speeds: str | None) -> Hardware:
    between = None if link is None else parse_link(link)
    paces = () if speeds is None else _speeds(speeds)
    if cluster is not None:
        return _cluster_hardware(cluster, workers, between, paces)
    from fairlead.profiling.profile_cache import local_hardware, node_profile

    if not (place.root / "profiles" / "node.json").is_file():
        output.note("measuring this node, once (fairlead profile) ...")
    known = node_profile(place)
    count = workers or len(paces) or int(known["cores"])
    return local_hardware(known, count, link=between, speeds=_for_each(paces, count) if paces else ())


def _cluster_hardware(cluster: str, workers: int | None, link: Link | None, speeds: tuple[float, ...]) -> Hardware:
    import msgspec

    from fairlead.profiling.device_types import hardware_of
    from fairlead.simulation.clusters import cluster as parse

    hardware = hardware_of(parse(cluster), workers=workers, link=link)
    if workers is not None and workers > len(hardware.seats):
        raise InvalidSpec(
            f"{workers} is more than the {len(hardware.seats)} devices of {cluster}", field="--workers", fix="lower it"
        )
    if not speeds:
        return hardware
    paces = _for_each(speeds, len(hardware.seats))
    seats = tuple(
        msgspec.structs.replace(seat, speed=pace / max(paces)) for seat, pace in zip(hardware.seats, paces, strict=True)
    )
    return msgspec.structs.replace(hardware, seats=seats)


def _speeds(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not all(0 < pace < math.inf for pace in found) or not found:
        raise InvalidSpec(
            f"{text!r} is not a list of speeds", field="--speeds", value=text, fix="write positive numbers: 2,1"
        )
    return found


def _for_each(speeds: tuple[float, ...], workers: int) -> tuple[float, ...]:
    """One speed per worker: repeats the list, whose length must divide the number of workers."""
    if workers % len(speeds):
        given = ",".join(f"{pace:g}" for pace in speeds)
        raise InvalidSpec(
            f"{given} names {len(speeds)} speeds for {workers} workers", field="--speeds", value=given,
            fix="write one per worker, or a number of speeds that divides the number of workers",
        )  # fmt: skip
    return speeds * (workers // len(speeds))


def _check_measure(measure: str | None, cluster: str | None) -> None:
    if measure is not None and cluster is not None:
        raise InvalidSpec(
            "plans are measured on this machine, not on a described cluster", field="--measure", fix="drop --cluster"
        )
    if measure is not None and measure != "all" and not (measure.isdecimal() and int(measure) > 0):
        raise InvalidSpec(f"{measure!r} is not a number of candidates", field="--measure", fix="write 3 or all")


def _corrected(place: Home, model: ModelProfile) -> ModelProfile:
    """The model profile with corrections from earlier measurements of its plans."""
    import msgspec

    from fairlead.profiling.profile_cache import corrections

    if model.calibration is None:
        return model
    known = msgspec.structs.replace(model.calibration, factors=corrections(place, model))
    return msgspec.structs.replace(model, calibration=known)


def _too_large(one: Estimate, hardware: Hardware) -> Refused:
    most = max(device.memory_bytes for device in hardware.devices.values())
    return Refused(
        f"no plan fits in memory: DDP needs {shown_size(one.memory_bytes)} per worker, a device has {shown_size(most)}",
        field="--workers", fix="use more workers, devices with more memory, or a smaller batch",
    )  # fmt: skip


def _row(one: Estimate, why: str, trial: Trial | None) -> dict[str, Any]:
    """One candidate as printed by --json; scripts rely on its fields."""
    from fairlead.planning.plan_reasons import plan_row

    if trial is not None and trial.error:
        why += f"; could not run: {trial.error}"
    return plan_row(one, why, trial.step_s if trial else None)


def _is_single(row: dict[str, Any]) -> bool:
    return bool(row["id"] == "single")


def _print(rows: list[dict[str, Any]], model: ModelProfile, workers: int) -> None:
    output.line(
        f"{model.parameters:,} parameters, {_flops(model.flops)} per sample, batch {model.batch_size}, "
        f"{workers} worker{'s' if workers > 1 else ''}"
    )
    right = {"right": True}
    columns = [
        Column("PLAN"), Column("WORKERS", **right), Column("STEP TIME", **right), Column("SAMPLES/S", **right),
        Column("MEMORY", **right), Column("BOTTLENECK"),
    ]  # fmt: skip
    if any(row["measured_step_s"] for row in rows):
        columns.insert(3, Column("MEASURED", **right))
    table = []
    for row in rows:
        cells = [
            row["id"], row["workers_used"], _seconds(row["step_s"]), f"{row['samples_per_s']:,.0f}",
            shown_size(row["memory_bytes"]), row["bottleneck"],
        ]  # fmt: skip
        if len(columns) > len(cells):
            cells.insert(3, _seconds(row["measured_step_s"]) if row["measured_step_s"] else "–")
        table.append(cells)
    output.table(columns, table, empty="no plan")
    output.line()
    output.line(f"{rows[0]['id']}: {rows[0]['reason']}")
    for row in rows[1:]:
        output.line(f"{row['id']}: {row['reason']}", style="dim")
    for reason in model.limits:
        output.line(f"note: {reason}", style="yellow")


def _flops(count: float) -> str:
    """Floating-point operations with a unit that leaves one to three digits before the point."""
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{output.number(count)} TFLOP"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
