"""The verb data: data sets that are loaded once, kept by name and version, and trained on by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import output
from fairlead.cli.options import Json, Tenant, Watch, client, pairs, plain_value
from fairlead.cli.text_tables import Column

if TYPE_CHECKING:
    from fairlead.sdk.jobs import Job

data = typer.Typer(help="Load, list, show and drop data sets.", rich_markup_mode=None)

Ref = Annotated[str, typer.Argument(metavar="NAME[@VERSION]", help="Its name, with a version (or its beginning).")]
SHORT = 12


@data.command("load")
def load_dataset(
    source: Annotated[str, typer.Argument(metavar="FILE|FOLDER|URL", help="A file, a folder, or a database's URL.")],
    name: Annotated[str, typer.Option("--name", help="The data set's name.")],
    recipe: Annotated[Path | None, typer.Option("--recipe", help="How it is prepared: a YAML file.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="The column that is to be predicted.")] = None,
    test: Annotated[float, typer.Option("--test", min=0, max=0.9, help="Part of the rows for NAME-test.")] = 0.0,
    like: Annotated[str | None, typer.Option("--like", help="Prepare it as this data set was.")] = None,
    workers: Annotated[int, typer.Option("--workers", min=0, help="Threads that prepare it; 0: all cores.")] = 0,
    memory: Annotated[str | None, typer.Option("--memory", help="What the job may use, such as 1GB.")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="name=value for the reader.")] = None,
    of: Tenant = None,
    watch: Watch = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Load a data set: a job reads, prepares and keeps it in memory, under a name that trainings use.

    Without a recipe gaps are filled, numbers normalised and words encoded, all side by side as one input.
    """
    how = {key: plain_value(text) for key, text in pairs("--option", option).items()}
    job = client().load_data(
        source,
        name,
        recipe=recipe,
        target=target,
        test=test,
        like=like,
        workers=workers,
        tenant=of,
        memory=memory,
        **how,
    )
    _follow(job, name, watch, as_json)


@data.command("sync")
def sync_dataset(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The data set's name.")],
    source: Annotated[str | None, typer.Option("--from", help="Where it is now; default: where it was.")] = None,
    of: Tenant = None,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Append what has come since to a data set: a new version, through the recipe that was fitted the first time."""
    _follow(client().sync_data(name, source=source, tenant=of), name, watch, as_json)


def _follow(job: Job, name: str, watch: bool, as_json: bool) -> None:
    if watch:
        from fairlead.cli.watch import watch as follow

        raise typer.Exit(follow(job, as_json=as_json))
    if as_json:
        output.print_json(job.view)
        return
    output.line(f"submitted {job.name} ({job.id}) for {job.view.tenant}: {job.state}")
    output.line(f"  follow it: fairlead logs {job.id} -f    when it has ended: fairlead data show {name}", style="dim")


@data.command("list")
def list_datasets(of: Tenant = None, as_json: Json = False) -> None:
    """Data sets with their newest versions, and where they are in memory."""
    found = client().datasets(tenant=of)
    if as_json:
        output.print_json({"datasets": found})
        return
    columns = [
        Column("NAME", spare=True), Column("VERSION"), Column("NO", right=True), Column("ROWS", right=True),
        Column("SIZE", right=True), Column("LOADED"), Column("TENANT", from_width=90), Column("IN MEMORY", grows=True),
    ]  # fmt: skip
    rows = (
        [
            each.name, each.version[:SHORT], each.number, each.rows, output.size(each.size_bytes),
            output.when(each.created_s), each.tenant, _where(each.resident),
        ]
        for each in found
    )  # fmt: skip
    output.table(columns, rows, empty="no data sets; load one: fairlead data load FILE --name NAME")


def _meant(ref: str) -> tuple[str, str | None]:
    """Name and version; half a version is a mistake, and not all of them."""
    from fairlead.data.dataset_refs import dataset

    found = dataset(ref)
    return found.name, found.version


@data.command("show")
def show_dataset(ref: Ref, of: Tenant = None, as_json: Json = False) -> None:
    """One version of a data set: schema, blocks, all versions, and the jobs that read them."""
    name, version = _meant(ref)
    found = client().dataset(name, version, tenant=of)
    if as_json:
        output.print_json(found)
        return
    output.line(f"{found.name}@{found.version} of {found.tenant}")
    output.line(f"  {found.rows} rows, {output.size(found.size_bytes)} in {found.blocks} blocks; loaded by {found.job}")
    output.line(f"  in memory: {_where(found.resident) or 'nowhere'}")
    output.line(f"  recipe: {found.recipe[:SHORT] or 'none'}")
    output.line(f"  columns: {output.clean(_columns(found.manifest))}")
    columns = [Column("NO", right=True), Column("VERSION"), Column("FROM"), Column("ROWS", right=True),
               Column("LOADED"), Column("READ BY", grows=True)]  # fmt: skip
    rows = (
        [each.number, each.version[:SHORT], (each.parent or "–")[:SHORT], each.rows, output.when(each.created_s),
         ", ".join(found.readers.get(each.version, []))]
        for each in found.versions
    )  # fmt: skip
    output.line()
    output.table(columns, rows, empty="")


def _columns(manifest: dict[str, Any]) -> str:
    told = []
    for each in manifest.get("schema", []):
        shape = "×".join(map(str, each.get("shape", [])))
        told.append(f"{each['name']} {each['dtype']}{f'[{shape}]' if shape else ''}")
    return ", ".join(told)


def _where(resident: dict[str, int]) -> str:
    return ", ".join(f"{node} {output.size(size)}" for node, size in resident.items())


@data.command("drop")
def drop_dataset(ref: Ref, of: Tenant = None, as_json: Json = False) -> None:
    """Forget a data set, or one version of it. What was trained on it stays, and says what it was trained on.

    Its blocks stay in memory until room is needed.
    """
    name, version = _meant(ref)
    gone = client().drop_dataset(name, version, tenant=of)
    if as_json:
        output.print_json({"dropped": gone})
        return
    for each in gone:
        output.line(f"dropped {each.name}@{each.version[:SHORT]} ({each.rows} rows)")
