"""Streams the rows of an SQL query: from any database by SQLAlchemy, from DuckDB files by DuckDB."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from fairlead.data.errors import BadData, printable
from fairlead.data.options import Options
from fairlead.data.schema import with_declared_types
from fairlead.data.source import Batches, Source
from fairlead.errors import InvalidSpec

Run = Callable[[str, dict[str, Any]], Batches]
_PARTITION = 2_000


@dataclass(frozen=True, slots=True)
class _Query:
    """A query limited to a range of its growing column, so that the rows read match the watermark."""

    text: str
    quoted: str | None
    after: Any
    upto: Any

    def range(self) -> tuple[str, dict[str, Any]]:
        if self.quoted is None:
            return self.text, {}
        low = f"{self.quoted} > :low AND " if self.after is not None else ""
        ranged = f"SELECT * FROM ({self.text}) AS source WHERE {low}{self.quoted} <= :high ORDER BY {self.quoted}"
        return ranged, {"high": self.upto} | ({"low": self.after} if self.after is not None else {})


def source(url: str, options: Options) -> Source:
    """A query as a source; ``order`` limits it to values above ``after`` and up to the current maximum."""
    name, run, quote = _connect(url, options)
    if (options.query is None) == (options.table is None):
        raise InvalidSpec(
            "does not tell what to read", field="source", fix="give either query='SELECT ...' or table='name'"
        )
    text = options.query or f"SELECT * FROM {'.'.join(quote(part) for part in str(options.table).split('.'))}"
    text = text.strip().removesuffix(";")
    _check_resumable(options)
    query = _Query(text, None, None, None)
    if options.order is not None:
        quoted = quote(options.order)
        _check_order_column(run, text, options.order)
        _check_no_null_order(run, text, quoted, name, options.order)
        top = next(run(f"SELECT max({quoted}) AS high FROM ({text}) AS source", {}))
        after = (options.after or {}).get("high")
        high = top.column(0)[0].as_py()
        query = _Query(text, quoted, after, after if high is None else high)
    # The schema comes from all rows: among the new ones a column may be unset everywhere.
    schema = with_declared_types(name, _infer_schema(run, replace(query, after=None), name), options.schema)
    mark = {"query": text, "order": options.order, "high": query.upto}
    start = partial(_cast_batches, run, query, schema, name)
    return Source(name, "sql", schema, start, lambda: dict(mark), watermark_identifies_content=False)


def _check_resumable(options: Options) -> None:
    """Refuse to resume a query that cannot tell new rows from old ones: it would read all of them again."""
    if options.after is None:
        return
    before = options.after.get("order") if "query" in options.after else options.order
    if options.order is None:
        raise InvalidSpec("a query without an order cannot tell which rows are new", field="order",
                          fix="load it again with a column that only grows: order=COLUMN, -o order=COLUMN")  # fmt: skip
    if before != options.order:
        how = "without an order" if before is None else f"in the order of {before}"
        raise InvalidSpec(f"the data set was read {how}, so {options.order} cannot tell which rows are new",
                          field="order", fix="use the same order, or load the data set again")  # fmt: skip


def _check_order_column(run: Run, text: str, order: str) -> None:
    """Refuse a column that the query does not return: some databases would take the name for a string constant."""
    found = next(run(f"SELECT * FROM ({text}) AS source WHERE 1 = 0", {})).schema.names
    if order.casefold() not in {each.casefold() for each in found}:
        raise InvalidSpec(f"the query has no column {order}", field="order", value=order,
                          fix=f"name one of {', '.join(found[:20])}")  # fmt: skip


def _check_no_null_order(run: Run, text: str, quoted: str, name: str, order: str) -> None:
    """Refuse rows without a value in the growing column: no read would ever include them."""
    lost = next(run(f"SELECT count(*) AS lost FROM ({text}) AS source WHERE {quoted} IS NULL", {}))
    count = lost.column(0)[0].as_py()
    if count:
        raise BadData(name, f"is empty in {count:,} row{'s' if count > 1 else ''}, which therefore have no order",
                      column=order, fix=f"give them a value, or exclude them: WHERE {order} IS NOT NULL")  # fmt: skip


def _infer_schema(run: Run, query: _Query, name: str) -> pa.Schema:
    for batch in run(*query.range()):
        return batch.schema
    raise BadData(name, "the query returns no columns", fix="use a query that selects rows")


def _cast_batches(run: Run, query: _Query, schema: pa.Schema, name: str) -> Batches:
    done = 0
    for batch in run(*query.range()):
        columns = []
        for field, column in zip(schema, batch.columns, strict=True):
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                what = f"does not fit {field.type}: {printable(str(error))}"
                fix = f"cast it in the query, or give the type: schema={{{field.name!r}: 'string'}}"
                raise BadData(name, what, row=done + 1, column=field.name, fix=fix) from None
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
        done += batch.num_rows


def _connect(url: str, options: Options) -> tuple[str, Run, Callable[[str], str]]:
    if url.startswith("duckdb:"):
        return url, partial(_run_duckdb, url, options), lambda name: '"' + name.replace('"', '""') + '"'
    import sqlalchemy
    from sqlalchemy.pool import NullPool

    try:
        engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    except (sqlalchemy.exc.SQLAlchemyError, ImportError, ValueError) as error:
        fix = "write it like postgresql+psycopg://user@host/name or sqlite:///file.db, and install the driver it names"
        raise InvalidSpec(
            f"no database can be reached by this URL: {printable(str(error))}", field="source", fix=fix
        ) from None
    shown_url = engine.url.render_as_string(hide_password=True)
    file = engine.url.database or ":memory:"
    in_file = engine.dialect.name == "sqlite" and file != ":memory:" and not file.startswith("file:")
    if in_file and not Path(file).is_file():  # SQLite would create an empty one
        raise BadData(shown_url, f"there is no file {file}", fix="check the path; /// is relative, //// is not")
    return (
        shown_url,
        partial(_run_sqlalchemy, engine, shown_url, options),
        engine.dialect.identifier_preparer.quote_identifier,
    )


@contextmanager
def _query_errors(name: str, kinds: tuple[type[Exception], ...]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        fix = "check the query, the names in it and the permissions of the database user"
        raise BadData(name, f"the query failed: {printable(str(error).splitlines()[0])}", fix=fix) from None


def _check_distinct_names(name: str, columns: list[str]) -> None:
    if twice := [column for column, count in Counter(columns).items() if count > 1]:
        fix = "name them apart in the query: SELECT a.id AS a_id, b.id AS b_id"
        raise BadData(name, "two columns have this name", column=twice[0], fix=fix)


def _run_duckdb(url: str, options: Options, text: str, more: dict[str, Any]) -> Batches:
    import duckdb

    path = url.removeprefix("duckdb:").removeprefix("//").removeprefix("/") if url != "duckdb:" else ""
    path = "/" + path if url.startswith("duckdb:////") else path
    settings: dict[str, Any] = {
        "memory_limit": f"{max(64, options.memory_bytes // (2 << 20))}MB",
        "threads": str(options.threads),
        "autoinstall_known_extensions": "false",  # a query must not trigger downloads
    }
    named = {**options.parameters, **more}
    for name in named:
        text = text.replace(f":{name}", f"${name}")
    with _query_errors(url, (duckdb.Error,)), duckdb.connect(path or ":memory:", bool(path), settings) as database:
        reader: Any = database.sql(text, params=named or None).to_arrow_reader(options.batch_rows)
        _check_distinct_names(url, reader.schema.names)
        empty = pa.RecordBatch.from_pylist([], schema=reader.schema)
        first = True
        for batch in reader:
            first = False
            yield batch
        if first:
            yield empty


def _run_sqlalchemy(engine: Any, name: str, options: Options, text: str, more: dict[str, Any]) -> Batches:
    import sqlalchemy

    with _query_errors(name, (sqlalchemy.exc.SQLAlchemyError,)), engine.connect() as link:
        streaming = link.execution_options(stream_results=True, max_row_buffer=_PARTITION)
        result = streaming.execute(sqlalchemy.text(text), {**options.parameters, **more})
        names, types = list(result.keys()), dict[str, pa.DataType]()
        _check_distinct_names(name, names)
        done = 0
        for rows in result.partitions(min(options.batch_rows, _PARTITION if done else options.sample_rows)):
            yield _batch(name, names, rows, types, done)
            done += len(rows)
        if not done:
            yield pa.RecordBatch.from_pylist([], schema=pa.schema([(column, pa.string()) for column in names]))


def _batch(name: str, names: list[str], rows: Any, types: dict[str, pa.DataType], done: int) -> pa.RecordBatch:
    """Rows as columns; the first rows with a value determine a column's type."""
    columns = []
    for column, values in zip(names, zip(*rows, strict=True), strict=True):
        plain = [float(value) if isinstance(value, Decimal) else value for value in values]
        try:
            made = pa.array(plain, types.get(column))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            fix = "cast it in the query, so that all its values have one type"
            raise BadData(name, printable(str(error)), row=done + 1, column=column, fix=fix) from None
        made = made.cast(pa.string()) if pa.types.is_null(made.type) else made
        types.setdefault(column, made.type)
        columns.append(made)
    return pa.RecordBatch.from_arrays(columns, names=names)
