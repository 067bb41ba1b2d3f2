"""Profiles a source in one pass and bounded memory: DuckDB aggregates, few values are counted, many sampled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairlead.data.errors import BadData
from fairlead.data.reading import read
from fairlead.data.sampling import PREFIX_LENGTH, DistinctCounts, RowSample
from fairlead.data.source import Source

_TOP = 3
_WIDENINGS = 50
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_PLACEHOLDERS = frozenset({"?", "-", "--", "none", "unknown", "select", "n/a", "na", "missing", "null", "undefined"})
_PROSE_LENGTH = 50  # average length beyond which a text is prose rather than an identifier
_FEWEST_ROWS = 20  # rows up to which a column is not called an identifier


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """Statistics of one column; counts with ``exact`` false are within a few percent."""

    name: str
    type: str
    nulls: int
    distinct: int | None = None
    exact: bool = True
    min: Any = None
    max: Any = None
    mean: float | None = None
    std: float | None = None
    quantiles: tuple[float, ...] = ()  # at 5, 25, 50, 75 and 95 %
    length: float | None = None  # average length of a text
    numbers: int = 0  # texts that are numbers
    padded: int = 0  # texts with blanks around them
    strange: int = 0  # numbers that are NaN or infinite
    top: tuple[tuple[Any, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """Statistics of a source, and the anomalies found in it."""

    name: str
    format: str
    rows: int
    columns: tuple[ColumnProfile, ...]
    anomalies: tuple[str, ...] = ()


def describe(given: Any, **how: Any) -> Profile:
    """Profile anything that `read` takes. A column that does not fit its inferred type is read as a wider one."""
    schema: dict[str, Any] = dict(how.pop("schema", None) or {})
    noted: list[str] = []
    for _ in range(_WIDENINGS):
        source = read(given, schema=schema or None, **how)
        try:
            return _profile(source, noted)
        except BadData as error:
            known = error.column in source.schema.names and error.row is not None
            if not known or schema.get(str(error.column)) == "string":
                raise
            wider = "float64" if "float64" in str(error.fix) else "string"
            noted.append(f"{error.column}: row {error.row:,}: {error.what}; read as {wider}")
            schema[str(error.column)] = wider
    what = f"more than {_WIDENINGS} columns do not fit the types of their first rows"
    raise BadData(given, what, fix="give their types: schema={...}")


def _profile(source: Source, noted: list[str]) -> Profile:
    import duckdb

    counts = {f.name: DistinctCounts() for f in source.schema if not pa.types.is_nested(f.type)}
    schema = _without_zones(source.schema)
    sample = RowSample(schema)
    questions = [question for f in source.schema for question in _duckdb_aggregates(f)]
    settings: dict[str, Any] = {"memory_limit": "512MB", "threads": "2", "preserve_insertion_order": "false"}
    with duckdb.connect(":memory:", False, settings) as database:
        database.execute("SET enable_progress_bar = false")  # else interactive Python draws one on stdout
        failed: list[BadData] = []
        watched = pa.RecordBatchReader.from_batches(schema, _counted_batches(source, schema, counts, sample, failed))
        database.register("source", watched)
        asked = ", ".join(["count(*)", *(f"{text} AS q{place}" for place, (_, _, text) in enumerate(questions))])
        row = database.sql(f"SELECT {asked} FROM source").fetchall()[0]
    if failed:
        raise failed[0]
    found: dict[str, dict[str, Any]] = {f.name: {} for f in source.schema}
    for (column, what, _), value in zip(questions, row[1:], strict=True):
        found[column][what] = value
    drawn = sample.table()
    columns = tuple(_column(f, found[f.name], counts.get(f.name), drawn, row[0]) for f in source.schema)
    notes = (*noted, *source.notes, *_anomalies(columns, row[0]))
    return Profile(source.name, source.format, row[0], columns, notes)


def _without_zones(schema: pa.Schema) -> pa.Schema:
    """Timestamps as UTC: DuckDB needs an extra library to show another zone."""
    zoned = {f.name for f in schema if pa.types.is_timestamp(f.type) and f.type.tz is not None}
    plain = [f.with_type(pa.timestamp(f.type.unit)) if f.name in zoned else f for f in schema]
    return pa.schema(plain, schema.metadata) if zoned else schema


def _counted_batches(
    source: Source, schema: pa.Schema, counts: dict[str, DistinctCounts], sample: RowSample, failed: list[BadData]
) -> Iterator[pa.RecordBatch]:
    """Counts and samples batches on their way to DuckDB. An error ends the stream and is appended to ``failed``."""
    try:
        for each in source.batches():
            batch = each if schema is source.schema else each.cast(schema)
            for name, count in counts.items():
                count.add(batch.column(name))
            sample.add(batch)
            yield batch
    except BadData as error:
        failed.append(error)


def _duckdb_aggregates(f: pa.Field) -> Iterator[tuple[str, str, str]]:
    """The aggregates of a column for DuckDB: (column, name, SQL)."""
    name = '"' + f.name.replace('"', '""') + '"'
    yield f.name, "set", f"count({name})"
    if pa.types.is_nested(f.type) or pa.types.is_binary(f.type):
        return
    text = pa.types.is_string(f.type) or pa.types.is_large_string(f.type)
    value = f"left({name}, {PREFIX_LENGTH})" if text else name
    yield f.name, "distinct", f"approx_count_distinct({name})"
    yield f.name, "min", f"min({value})"
    yield f.name, "max", f"max({value})"
    if text:
        yield f.name, "length", f"avg(length({name}))"
        yield f.name, "numbers", f"count(*) FILTER (try_cast({name} AS DOUBLE) IS NOT NULL)"
        yield f.name, "padded", f"count(*) FILTER ({name} <> trim({name}))"
    elif pa.types.is_integer(f.type) or pa.types.is_floating(f.type):
        whole = pa.types.is_integer(f.type)
        number, finite = f"{name}::DOUBLE", "" if whole else f" FILTER (isfinite({name}))"
        yield f.name, "mean", f"avg({number}){finite}"
        yield f.name, "std", f"stddev_samp({number}){finite.replace('))', f') AND abs({name}) < 1e150)')}"
        if not whole:
            yield f.name, "strange", f"count(*) FILTER (NOT isfinite({name}))"


def _column(
    f: pa.Field, found: dict[str, Any], counts: DistinctCounts | None, drawn: pa.Table | None, rows: int
) -> ColumnProfile:
    exact = counts is not None and counts.exact
    seen = drawn.column(f.name) if drawn is not None and f.name in drawn.column_names else None
    top, distinct = _frequent_values(seen, rows) if not exact else (), found.get("distinct")
    if counts is not None and exact:
        present = Counter({value: count for value, count in counts.values.items() if value is not None})
        top, distinct = tuple(present.most_common(_TOP)), len(present)
    return ColumnProfile(
        f.name, str(f.type), rows - int(found["set"]), distinct=distinct, exact=exact, min=found.get("min"),
        max=found.get("max"), mean=found.get("mean"), std=found.get("std"), quantiles=_quantiles(seen),
        length=found.get("length"), numbers=int(found.get("numbers") or 0), padded=int(found.get("padded") or 0),
        strange=int(found.get("strange") or 0), top=top,
    )  # fmt: skip


def _frequent_values(seen: pa.ChunkedArray | None, rows: int) -> tuple[tuple[Any, int], ...]:
    """The most frequent values of a sample, if frequent enough to hold for all rows; counts are scaled up."""
    if seen is None or not len(seen):
        return ()
    found = pc.value_counts(seen).to_pylist()
    often = sorted((each for each in found if each["counts"] >= 10 and each["values"] is not None),
                   key=lambda each: (-each["counts"], str(each["values"])))  # fmt: skip
    return tuple((each["values"], round(each["counts"] * rows / len(seen))) for each in often[:_TOP])


def _quantiles(seen: pa.ChunkedArray | None) -> tuple[float, ...]:
    if seen is None or not (pa.types.is_integer(seen.type) or pa.types.is_floating(seen.type)):
        return ()
    values = pc.drop_null(seen).to_numpy()
    finite = values[np.isfinite(values)]
    return tuple(float(each) for each in np.quantile(finite, _LEVELS)) if len(finite) else ()


def _anomalies(columns: Sequence[ColumnProfile], rows: int) -> Iterator[str]:
    """Properties of columns that need attention before training: one sentence each, in the order of the columns."""
    if rows == 0:
        yield "there are no rows"
        return
    for column in columns:
        yield from (f"{column.name}: {what}" for what in _column_anomalies(column, rows))


def _column_anomalies(column: ColumnProfile, rows: int) -> Iterator[str]:
    present = rows - column.nulls
    if present == 0:
        yield "is never set"
        return
    if column.nulls > rows / 2:
        yield f"is not set in {column.nulls:,} of {rows:,} rows"
    if column.distinct == 1 and column.exact and rows > 1:
        yield f"is the same in all rows that have it: {_short(column.top[0][0])}"
    if column.length is not None:
        yield from _text_anomalies(column, present)
    if rows > _FEWEST_ROWS and _is_key(column, present):
        yield "is different in every row: an identifier rather than a feature"
    if column.strange:
        yield f"{column.strange:,} values are infinite or no number"


def _text_anomalies(column: ColumnProfile, present: int) -> Iterator[str]:
    if present * 0.5 < column.numbers < present:
        yield f"is text, but {column.numbers:,} of {present:,} values are numbers"
    elif column.numbers == present:
        yield "is text, but every value is a number"
    if column.padded:
        yield f"{column.padded:,} values have blanks around them"
    for value, count in column.top:
        if str(value).strip().lower() in _PLACEHOLDERS:
            often = f" ({count:,} rows)" if count else ""
            yield f"{_short(value)} seems to stand for a missing value{often}"


def _is_key(column: ColumnProfile, present: int) -> bool:
    if column.length is not None and column.length > _PROSE_LENGTH:
        return False
    if column.distinct is None or column.type in ("double", "float", "halffloat", "bool"):
        return False
    return column.distinct == present if column.exact else column.distinct > 0.97 * present


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
