"""The verbs data get and data describe: they run in the person's own process and need no platform."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import output
from fairlead.cli.options import Json, quiet_imports
from fairlead.cli.text_tables import FIXED_SPACE, Column
from fairlead.terminal import plain

if TYPE_CHECKING:
    from fairlead.data.profile import ColumnProfile, Profile

Name = Annotated[str, typer.Argument(metavar="NAME", help="cifar10, bank, imdb or kdd99.")]
From = Annotated[Path | None, typer.Option("--from", help="A folder that holds it; default: FAIRLEAD_DATA, if set.")]
To = Annotated[Path | None, typer.Option("--to", help="Where it shall lie; default: FAIRLEAD_DATA, or ./data.")]
What = Annotated[str, typer.Argument(metavar="FILE", help="A file, pattern or folder, or the URL of a database.")]
Format = Annotated[str, typer.Option("--format", help="csv, json, parquet, text, images or arrays; default: auto.")]
Query = Annotated[str | None, typer.Option("--query", help="With a database: the SQL query to describe.")]
Table = Annotated[str | None, typer.Option("--table", help="With a database: the table to describe.")]
Encoding = Annotated[str | None, typer.Option("--encoding", help="Of text that is not UTF-8, such as latin-1.")]
_BAR, _EVERY_S = 30, 0.1


def get(name: Name, source: From = None, to: To = None, as_json: Json = False) -> None:
    """Get a data set of record, from a folder or from its public origin."""
    quiet_imports()
    from fairlead.data.dataset_origins import origin
    from fairlead.data.known_datasets import get as bring

    wanted = origin(name)
    bar = _Bar()
    got = bring(wanted, source=source, to=to, report=bar if sys.stderr.isatty() and not as_json else None)
    bar.close()
    if as_json:
        output.print_json({"name": got.name, "folder": str(got.folder), "files": [str(file) for file in got.files]})
        return
    output.line(wanted.title)
    output.line(f"  from {got.source}; checksums agree")
    for file in got.files:
        output.line(f"  {file}  {output.size(file.stat().st_size)}")
    output.line(f"  terms: {wanted.terms}", style="dim")


class _Bar:
    """How much of a file has come, on stderr, at most ten times a second."""

    def __init__(self) -> None:
        self._next_s, self._drawn = 0.0, False

    def __call__(self, name: str, done: int, total: int | None) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s, self._drawn = now_s + _EVERY_S, True
        if total:
            filled = _BAR * min(done, total) // total
            told = f"[{'#' * filled}{'.' * (_BAR - filled)}] {output.size(done)} of {output.size(total)}"
        else:
            told = output.size(done)
        sys.stderr.write(f"\r\x1b[K{plain(name)} {told}")
        sys.stderr.flush()

    def close(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def describe(
    what: What, format: Format = "auto", query: Query = None, table: Table = None, encoding: Encoding = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Rows, columns, types, missing and frequent values of a file, and what about it is peculiar."""
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
        output.line("worth a look:")
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
