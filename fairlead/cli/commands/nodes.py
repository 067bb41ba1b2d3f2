"""The verb nodes: what the cluster is made of, and taking nodes out of it and back in."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli import output
from fairlead.cli.options import Json, client
from fairlead.cli.text_tables import Column

if TYPE_CHECKING:
    from fairlead.views.jobs import NodeView

LOOK_EVERY_S = 0.25

app = typer.Typer(help="The nodes of the cluster; drain, cordon or uncordon one.", rich_markup_mode=None)
Node = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.")]


@app.callback(invoke_without_command=True)
def nodes(context: typer.Context, as_json: Json = False) -> None:
    """The nodes of the cluster; drain, cordon or uncordon one."""
    if context.invoked_subcommand is not None:
        return
    found = client().nodes()
    if as_json:
        output.print_json({"nodes": found})
        return
    columns = [
        Column("NODE"), Column("STATE"), Column("DEVICES", right=True), Column("TYPE"), Column("SPEED", right=True),
        Column("CPU", right=True), Column("BUSY", right=True), Column("MEMORY", right=True),
        Column("JOBS"),
    ]  # fmt: skip
    told = len({tuple(node.places) for node in found}) > 1  # where all are in one place, nobody needs to be told
    if told:
        columns.insert(4, Column("PLACES"))
    warm = any(node.temperature_c is not None for node in found)
    if warm:
        columns.insert(-1, Column("TEMP", right=True, from_width=90))
    output.table(columns, [_row(node, told=told, warm=warm) for node in found], empty="no nodes")
    for isolation in sorted({node.isolation for node in found}):
        where = ", ".join(node.name for node in found if node.isolation == isolation)
        output.line(f"isolation: {isolation}" + ("" if len({n.isolation for n in found}) == 1 else f" ({where})"))
    for node in found:
        if node.grid_trouble:
            output.line(f"{node.name}: {node.grid_trouble}")


def _row(node: NodeView, *, told: bool, warm: bool) -> list[object]:
    places = [",".join(node.places)] if told else []
    degrees = ["–" if node.temperature_c is None else f"{node.temperature_c:.0f} °C"] if warm else []
    return [
        node.name, output.state(node.state), f"{node.devices_used}/{node.devices}", node.device_type, *places,
        output.number(node.speed), output.number(node.cpu), output.percent(node.cpu_fraction),
        output.size(node.memory_bytes),
        *degrees, ",".join(node.jobs) or "–",
    ]  # fmt: skip


@app.command()
def drain(
    node: Node,
    wait: Annotated[bool, typer.Option("--wait", help="Return when nothing runs there any more.")] = False,
    as_json: Json = False,
) -> None:
    """Take no new work and move what runs there elsewhere, with its state; what finds no room waits in the queue."""
    platform = client()
    view, told = platform.drain(node), ""
    while wait and view.state == "draining":
        left = ", ".join(view.jobs) or "workers that are ending"
        if left != told and not as_json:
            output.line(f"{node} is draining: {left} on it", style="dim")
        told = left
        time.sleep(LOOK_EVERY_S)
        view = next(found for found in platform.nodes() if found.name == node)
    _answer(view, as_json)


@app.command()
def cordon(node: Node, as_json: Json = False) -> None:
    """Take no new work; what runs there goes on."""
    _answer(client().cordon(node), as_json)


@app.command()
def uncordon(node: Node, as_json: Json = False) -> None:
    """Take work again."""
    _answer(client().uncordon(node), as_json)


def _answer(node: NodeView, as_json: bool) -> None:
    if as_json:
        output.print_json(node)
    else:
        running = f", with {', '.join(node.jobs)}" if node.jobs else ""
        output.line(f"{node.name} is {node.state}{running}")
