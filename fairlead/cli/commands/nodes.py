"""The verb nodes: lists, drains, cordons and uncordons nodes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli import output
from fairlead.cli.options import Json, client
from fairlead.cli.text_tables import Column

if TYPE_CHECKING:
    from fairlead.views.jobs import NodeView

POLL_S = 0.25

app = typer.Typer(help="List nodes; drain, cordon or uncordon one.", rich_markup_mode=None)
Node = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.")]


@app.callback(invoke_without_command=True)
def nodes(context: typer.Context, as_json: Json = False) -> None:
    """List nodes; drain, cordon or uncordon one."""
    if context.invoked_subcommand is not None:
        return
    found = client().nodes()
    if as_json:
        output.print_json({"nodes": found})
        return
    columns = [
        Column("NODE"), Column("STATE"), Column("DEVICES", right=True), Column("TYPE"), Column("SPEED", right=True),
        Column("CORES", right=True), Column("CPU USE", right=True), Column("MEMORY", right=True),
        Column("JOBS"),
    ]  # fmt: skip
    places = len({tuple(node.places) for node in found}) > 1  # hidden when all nodes are in the same place
    if places:
        columns.insert(4, Column("PLACES"))
    temperatures = any(node.temperature_c is not None for node in found)
    if temperatures:
        columns.insert(-1, Column("TEMP", right=True, from_width=90))
    output.table(columns, [_row(node, places=places, temperatures=temperatures) for node in found], empty="no nodes")
    if found:
        output.legend("DEVICES: used/total; SPEED: relative to the other nodes; CPU USE: of the node's cores")
    for isolation in sorted({node.isolation for node in found}):
        where = ", ".join(node.name for node in found if node.isolation == isolation)
        output.line(f"isolation: {isolation}" + ("" if len({n.isolation for n in found}) == 1 else f" ({where})"))
    for node in found:
        if node.grid_trouble:
            output.line(f"{node.name}: {node.grid_trouble}")


def _row(node: NodeView, *, places: bool, temperatures: bool) -> list[object]:
    where = [",".join(node.places)] if places else []
    degrees = ["–" if node.temperature_c is None else f"{node.temperature_c:.0f} °C"] if temperatures else []
    return [
        node.name, output.state(node.state), f"{node.devices_used}/{node.devices}", node.device_type, *where,
        output.number(node.speed), output.number(node.cpu), output.percent(node.cpu_fraction),
        output.size(node.memory_bytes),
        *degrees, ",".join(node.jobs) or "–",
    ]  # fmt: skip


@app.command()
def drain(
    node: Node,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the node is empty.")] = False,
    as_json: Json = False,
) -> None:
    """Stop new work on a node and move its jobs, with their state, to other nodes or back to the queue."""
    platform = client()
    view, shown = platform.drain(node), ""
    while wait and view.state == "draining":
        left = ", ".join(view.jobs) or "exiting workers"
        if left != shown and not as_json:
            output.line(f"{node} is draining: waiting for {left}", style="dim")
        shown = left
        time.sleep(POLL_S)
        view = next(found for found in platform.nodes() if found.name == node)
    _show(view, as_json)


@app.command()
def cordon(node: Node, as_json: Json = False) -> None:
    """Stop new work on a node; its running jobs continue."""
    _show(client().cordon(node), as_json)


@app.command()
def uncordon(node: Node, as_json: Json = False) -> None:
    """Allow work on a node again."""
    _show(client().uncordon(node), as_json)


def _show(node: NodeView, as_json: bool) -> None:
    if as_json:
        output.print_json(node)
    else:
        running = f", running {', '.join(node.jobs)}" if node.jobs else ""
        output.line(f"{node.name} is {node.state}{running}")
