"""The verb data: loads, lists, shows and drops data sets; downloads and describes files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import output
from fairlead.cli.options import Json, Tenant, Watch, client, parse_pairs, parse_value
from fairlead.cli.text_tables import Column

if TYPE_CHECKING:
    from fairlead.sdk.jobs import Job
import sys
import time

from fairlead.cli.options import quiet_imports
from fairlead.cli.text_tables import FIXED_SPACE
from fairlead.terminal import plain

if TYPE_CHECKING:
    from fairlead.data.profile import ColumnProfile, Profile

app = typer.Typer(help="Load, list, show and drop data sets; describe files.", rich_markup_mode=None)
Ref = Annotated[
    str,
    typer.Argument(
        metavar="NAME[@VERSION]", help="Name of a data set, optionally with a version or its first characters."
    ),
]
SHORT = 12
Name = Annotated[str, typer.Argument(metavar="NAME", help="cifar10, bank, imdb or kdd99.")]
From = Annotated[Path | None, typer.Option("--from", help="Copy from this folder; default: FAIRLEAD_DATA, if set.")]
To = Annotated[Path | None, typer.Option("--to", help="Target folder; default: FAIRLEAD_DATA, or ./data.")]
What = Annotated[str, typer.Argument(metavar="FILE", help="A file, glob pattern, folder or database URL.")]
Format = Annotated[str, typer.Option("--format", help="csv, json, parquet, text, images or arrays; default: auto.")]
Query = Annotated[str | None, typer.Option("--query", help="For a database: the SQL query to describe.")]
Table = Annotated[str | None, typer.Option("--table", help="For a database: the table to describe.")]
Encoding = Annotated[str | None, typer.Option("--encoding", help="Text encoding other than UTF-8, such as latin-1.")]
_BAR, _EVERY_S = 30, 0.1


@app.command("load")
def load_dataset(
    source: Annotated[str, typer.Argument(metavar="FILE|FOLDER|URL", help="A file, a folder, or a database URL.")],
    name: Annotated[str, typer.Option("--name", help="The data set's name.")],
    recipe: Annotated[Path | None, typer.Option("--recipe", help="YAML file with the preparation steps.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="The column to predict.")] = None,
    test: Annotated[float, typer.Option("--test", min=0, max=0.9, help="Fraction of rows for NAME-test.")] = 0.0,
    like: Annotated[str | None, typer.Option("--like", help="Reuse the fitted recipe of this data set.")] = None,
    workers: Annotated[int, typer.Option("--workers", min=0, help="Threads for the preparation; 0: all cores.")] = 0,
    memory: Annotated[str | None, typer.Option("--memory", help="Memory limit of the job, such as 1GB.")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="Reader option: name=value.")] = None,
    of: Tenant = None,
    watch: Watch = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Load a data set in a job and keep it in memory for training jobs.

    Without a recipe, missing values are filled, numbers normalised and categories encoded into one input.
    """
    how = {key: parse_value(text) for key, text in parse_pairs("--option", option).items()}
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


@app.command("sync")
def sync_dataset(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The data set's name.")],
    source: Annotated[
        str | None, typer.Option("--from", help="Its present location; default: where it was loaded from.")
    ] = None,
    of: Tenant = None,
    watch: Watch = False,
    as_json: Json = False,
) -> None:
    """Append new rows to a data set: makes a new version with the recipe fitted at the first load."""
    _follow(client().sync_data(name, source=source, tenant=of), name, watch, as_json)


def _follow(job: Job, name: str, watch: bool, as_json: bool) -> None:
    if watch:
        from fairlead.cli.watch import watch as follow

        raise typer.Exit(follow(job, as_json=as_json))
    if as_json:
        output.print_json(job.view)
        return
    output.line(f"submitted {job.name} ({job.id}) for {job.view.tenant}: {job.state}")
    output.line(f"  follow: fairlead logs {job.id} -f    when it has ended: fairlead data show {name}", style="dim")


@app.command("list")
def list_datasets(of: Tenant = None, as_json: Json = False) -> None:
    """List data sets: newest version, size, and the nodes that hold it in memory."""
    found = client().datasets(tenant=of)
    if as_json:
        output.print_json({"datasets": found})
        return
    columns = [
        Column("NAME", spare=True), Column("VERSION"), Column("NUMBER", right=True), Column("ROWS", right=True),
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


def _parse_ref(ref: str) -> tuple[str, str | None]:
    """Name and version; an empty version after @ is refused, not read as all versions."""
    from fairlead.data.dataset_refs import dataset

    found = dataset(ref)
    return found.name, found.version


@app.command("show")
def show_dataset(ref: Ref, of: Tenant = None, as_json: Json = False) -> None:
    """Show one version of a data set: schema, blocks, all versions and the jobs that read them."""
    name, version = _parse_ref(ref)
    found = client().dataset(name, version, tenant=of)
    if as_json:
        output.print_json(found)
        return
    output.line(f"{found.name}@{found.version} of tenant {found.tenant}")
    output.line(f"  {found.rows} rows, {output.size(found.size_bytes)} in {found.blocks} blocks; loaded by {found.job}")
    output.line(f"  in memory: {_where(found.resident) or 'no node'}")
    output.line(f"  recipe: {found.recipe[:SHORT] or 'none'}")
    output.line(f"  columns: {output.clean(_columns(found.manifest))}")
    columns = [Column("NUMBER", right=True), Column("VERSION"), Column("PARENT"), Column("ROWS", right=True),
               Column("LOADED"), Column("READ BY", grows=True)]  # fmt: skip
    rows = (
        [each.number, each.version[:SHORT], (each.parent or "–")[:SHORT], each.rows, output.when(each.created_s),
         ", ".join(found.readers.get(each.version, []))]
        for each in found.versions
    )  # fmt: skip
    output.line()
    output.table(columns, rows, empty="")


def _columns(manifest: dict[str, Any]) -> str:
    columns = []
    for each in manifest.get("schema", []):
        shape = "×".join(map(str, each.get("shape", [])))
        columns.append(f"{each['name']} {each['dtype']}{f'[{shape}]' if shape else ''}")
    return ", ".join(columns)


def _where(resident: dict[str, int]) -> str:
    return ", ".join(f"{node} {output.size(size)}" for node, size in resident.items())


@app.command("drop")
def drop_dataset(ref: Ref, of: Tenant = None, as_json: Json = False) -> None:
    """Remove a data set, or one version of it. Models trained on it stay, with their lineage.

    Its blocks stay in memory until the space is needed.
    """
    name, version = _parse_ref(ref)
    gone = client().drop_dataset(name, version, tenant=of)
    if as_json:
        output.print_json({"dropped": gone})
        return
    for each in gone:
        output.line(f"dropped {each.name}@{each.version[:SHORT]} ({each.rows} rows)")


@app.command("get")
def get(name: Name, source: From = None, to: To = None, as_json: Json = False) -> None:
    """Download cifar10, bank, imdb or kdd99, or copy it from a folder."""
    quiet_imports()
    from fairlead.data.dataset_origins import find_origin
    from fairlead.data.known_datasets import get_dataset as fetch

    wanted = find_origin(name)
    bar = _Bar()
    got = fetch(wanted, source=source, to=to, report=bar if sys.stderr.isatty() and not as_json else None)
    bar.close()
    if as_json:
        output.print_json({"name": got.name, "folder": str(got.folder), "files": [str(file) for file in got.files]})
        return
    output.line(wanted.title)
    output.line(f"  from {got.source}; checksums verified")
    for file in got.files:
        output.line(f"  {file}  {output.size(file.stat().st_size)}")
    output.line(f"  licence: {wanted.licence}", style="dim")


class _Bar:
    """A download's progress on stderr, redrawn at most ten times a second."""

    def __init__(self) -> None:
        self._next_s, self._drawn = 0.0, False

    def __call__(self, name: str, done: int, total: int | None) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s, self._drawn = now_s + _EVERY_S, True
        if total:
            filled = _BAR * min(done, total) // total
            progress = f"[{'#' * filled}{'.' * (_BAR - filled)}] {output.size(done)} of {output.size(total)}"
        else:
            progress = output.size(done)
        sys.stderr.write(f"\r\x1b[K{plain(name)} {progress}")
        sys.stderr.flush()

    def close(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@app.command("describe")
def describe(
    what: What, format: Format = "auto", query: Query = None, table: Table = None, encoding: Encoding = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Describe a file: rows, columns, types, missing and frequent values, and anomalies."""
    from fairlead.data.profile import describe as profile_of

    profile = profile_of(what, format=format, query=query, table=table, encoding=encoding)
    if as_json:
        output.print_json(_plain(profile))
        return
    output.line(
        f"{output.clean(profile.name)}: {profile.format}, {profile.rows:,} rows, {len(profile.columns)} columns"
    )
    columns = [
        Column("COLUMN", spare=True), Column("TYPE"), Column("NULLS", right=True), Column("DISTINCT", right=True),
        Column("MIN", right=True), Column("25%", right=True, from_width=110),
        Column("MEDIAN", right=True, from_width=90), Column("75%", right=True, from_width=110),
        Column("MAX", right=True), Column("MEAN", right=True, from_width=90), Column("MOST FREQUENT", grows=True),
    ]  # fmt: skip
    output.table(columns, [_row(column, profile.rows) for column in profile.columns], empty="no columns")
    if profile.anomalies:
        output.line()
        output.line("anomalies:")
        for each in profile.anomalies:
            output.line(f"  {output.clean(each)}", style="yellow")


def _row(column: ColumnProfile, rows: int) -> list[Any]:
    low, middle, high = column.quantiles[1:4] if column.quantiles else ("", "", "")
    distinct = "" if column.distinct is None else f"{'' if column.exact else '~'}{min(column.distinct, rows):,}"
    top = ", ".join(f"{_short(value)} {_part(count / rows)}".replace(" ", FIXED_SPACE) for value, count in column.top)
    nulls = f"{column.nulls:,}" if column.nulls else "–"
    return [column.name, _type(column.type), nulls, distinct, _short(column.min), _short(low), _short(middle),
            _short(high), _short(column.max), _short(column.mean), top]  # fmt: skip


def _part(share: float) -> str:
    return "<1 %" if share < 0.01 else output.percent(share)


def _type(name: str) -> str:
    return name.replace("fixed_size_list<item: ", "").replace(">[", "[") if name.startswith("fixed") else name


def _short(value: Any) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) and abs(value) < 1e7 else f"{value:.4g}"
    text = output.clean(str(value))
    return text if len(text) <= 16 else f"{text[:15]}…"


def _plain(profile: Profile) -> dict[str, Any]:
    from dataclasses import asdict

    found = asdict(profile)
    for column in found["columns"]:
        for key in ("min", "max"):
            column[key] = _json(column[key])
        column["top"] = [{"value": _json(value), "rows": count} for value, count in column["top"]]
    return found


def _json(value: Any) -> Any:
    return value if isinstance(value, int | float | str | bool | None) else str(value)
