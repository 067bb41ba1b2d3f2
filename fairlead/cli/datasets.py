"""The verb data: data sets that are loaded once, kept by name and version, and trained on by name."""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.cli import show
from fairlead.cli.drawing import Column
from fairlead.cli.options import Json, Tenant, client

data = typer.Typer(help="Load, list, show and drop data sets.", rich_markup_mode=None)

Ref = Annotated[str, typer.Argument(metavar="NAME[@VERSION]", help="Its name, with a version (or its beginning).")]
SHORT = 12


@data.command("list")
def list_datasets(of: Tenant = None, as_json: Json = False) -> None:
    """Data sets with their newest versions, and where they are in memory."""
    found = client().datasets(tenant=of)
    if as_json:
        show.print_json({"datasets": found})
        return
    columns = [
        Column("NAME", spare=True), Column("VERSION"), Column("NO", right=True), Column("ROWS", right=True),
        Column("SIZE", right=True), Column("LOADED"), Column("TENANT", from_width=90), Column("IN MEMORY", grows=True),
    ]  # fmt: skip
    rows = (
        [
            each.name, each.version[:SHORT], each.number, each.rows, show.size(each.size_bytes),
            show.when(each.created_s), each.tenant, _where(each.resident),
        ]
        for each in found
    )  # fmt: skip
    show.table(columns, rows, empty="no data sets")


@data.command("show")
def show_dataset(ref: Ref, of: Tenant = None, as_json: Json = False) -> None:
    """One version of a data set: schema, blocks, all versions, and the jobs that read them."""
    name, _, version = ref.partition("@")
    found = client().dataset(name, version or None, tenant=of)
    if as_json:
        show.print_json(found)
        return
    show.line(f"{found.name}@{found.version} of {found.tenant}")
    show.line(f"  {found.rows} rows, {show.size(found.size_bytes)} in {found.blocks} blocks; loaded by {found.job}")
    show.line(f"  in memory: {_where(found.resident) or 'nowhere'}")
    show.line(f"  recipe: {found.recipe[:SHORT] or 'none'}")
    show.line(f"  columns: {show.clean(_columns(found.manifest))}")
    columns = [Column("NO", right=True), Column("VERSION"), Column("FROM"), Column("ROWS", right=True),
               Column("LOADED"), Column("READ BY", grows=True)]  # fmt: skip
    rows = (
        [each.number, each.version[:SHORT], (each.parent or "–")[:SHORT], each.rows, show.when(each.created_s),
         ", ".join(found.readers.get(each.version, []))]
        for each in found.versions
    )  # fmt: skip
    show.line()
    show.table(columns, rows, empty="")


def _columns(manifest: dict[str, object]) -> str:
    schema = manifest.get("schema")
    if isinstance(schema, dict):
        return ", ".join(f"{name} {kind}" for name, kind in schema.items())
    return ", ".join(map(str, schema)) if isinstance(schema, list) else str(schema or "–")


def _where(resident: dict[str, int]) -> str:
    return ", ".join(f"{node} {show.size(size)}" for node, size in resident.items())


@data.command("drop")
def drop_dataset(ref: Ref, of: Tenant = None, as_json: Json = False) -> None:
    """Forget a data set, or one version of it. What was trained on it stays, and says what it was trained on."""
    name, _, version = ref.partition("@")
    gone = client().drop_dataset(name, version or None, tenant=of)
    if as_json:
        show.print_json({"dropped": gone})
        return
    for each in gone:
        show.line(f"dropped {each.name}@{each.version[:SHORT]} ({each.rows} rows)")
