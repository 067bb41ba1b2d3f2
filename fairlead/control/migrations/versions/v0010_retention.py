"""Retention: sums that outlast the rows they come from, what ended jobs keep on disk, and indexes for old platforms."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

KEY = sa.String().with_variant(sa.String(collation="C"), "postgresql")
ENDED = "('succeeded', 'failed', 'cancelled')"
HOUR_S = 3600
SPANS = {300: 4 * 86400.0, HOUR_S: 62 * 86400.0}
"""Lengths in seconds, and how far back each is filled."""


def upgrade() -> None:
    _create()
    _add_indexes()
    postgresql = op.get_context().dialect.name == "postgresql"
    code = "spec ->> 'code'" if postgresql else "json_extract(spec, '$.code')"
    op.execute(f"UPDATE submissions SET code = {code}")
    op.execute(f"INSERT INTO ended_jobs SELECT tenant, phase, count(*) FROM jobs WHERE phase IN {ENDED} "
               "GROUP BY tenant, phase")  # fmt: skip
    op.execute("INSERT INTO keepsakes SELECT id, tenant, finished_s, 'logs output', NULL FROM jobs "
               f"WHERE phase IN {ENDED} AND finished_s IS NOT NULL AND started_s IS NOT NULL")  # fmt: skip
    _fill()
    (_refuse_postgresql if postgresql else _refuse_sqlite)()


def _create() -> None:
    op.add_column("submissions", sa.Column("code", KEY))
    op.create_table(
        "ended_jobs",
        sa.Column("tenant", KEY, nullable=False),
        sa.Column("phase", KEY, nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "phase", name="pk_ended_jobs"),
    )
    op.create_table(
        "keepsakes",
        sa.Column("job", KEY, nullable=False),
        sa.Column("tenant", KEY, nullable=False),
        sa.Column("finished_s", sa.Double(), nullable=False),
        sa.Column("parts", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger()),
        sa.PrimaryKeyConstraint("job", name="pk_keepsakes"),
    )
    op.create_table(
        "wishes",
        sa.Column("span_s", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("tenant", KEY, nullable=False),
        sa.PrimaryKeyConstraint("span_s", "number", "tenant", name="pk_wishes"),
    )
    op.create_table(
        "usage_spans",
        sa.Column("span_s", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("tenant", KEY, nullable=False),
        sa.Column("node", KEY, nullable=False),
        sa.Column("device_type", KEY, nullable=False),
        sa.Column("device_s", sa.Double(), nullable=False),
        sa.Column("cpu_s", sa.Double(), nullable=False),
        sa.Column("first_s", sa.Double(), nullable=False),
        sa.Column("last_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("span_s", "number", "tenant", "node", "device_type", name="pk_usage_spans"),
    )
    op.create_table(
        "usage_pruned",
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("tenant", KEY, nullable=False),
        sa.Column("submitted_by", KEY, nullable=False),
        sa.Column("node", KEY, nullable=False),
        sa.Column("device_type", KEY, nullable=False),
        sa.Column("device_s", sa.Double(), nullable=False),
        sa.Column("cpu_s", sa.Double(), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", "tenant", "submitted_by", "node", "device_type", name="pk_usage_pruned"),
    )
    op.create_table(
        "retained",
        sa.Column("kind", KEY, nullable=False),
        sa.Column("since_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("kind", name="pk_retained"),
    )


def _add_indexes() -> None:
    for table, *columns in (
        ("jobs", "tenant", "finished_s", "id"),
        ("jobs", "finished_s", "tenant", "submitted_s"),
        ("submissions", "tenant", "code"),
        ("usage_hours", "job"),
        ("stages", "job"),
        ("pipelines", "tenant", "finished_s"),
    ):
        op.create_index(f"ix_{table}_{'_'.join(columns)}", table, columns)
    some, held = sa.text("size_bytes > 0"), ["tenant", "finished_s", "job", "size_bytes"]
    op.create_index("ix_keepsakes_held", "keepsakes", held, sqlite_where=some, postgresql_where=some)
    told = sa.text("kind = 'budget-used-up'")
    op.create_index("ix_events_budget_used_up", "events", ["time_s"], sqlite_where=told, postgresql_where=told)


# ---------------------------------------------------------------- sums of what is there already


def _fill() -> None:
    now_s = max(_newest("SELECT max(to_s) FROM usage"), _newest("SELECT max(finished_s) FROM jobs"))
    spans: dict[tuple[int, int, str, str, str], list[float]] = {}
    wishes: set[tuple[int, int, str]] = set()
    for span_s, kept_s in SPANS.items():
        if span_s == HOUR_S:
            _add_hours(now_s - kept_s)
        else:
            _add_usage(span_s, now_s - kept_s, spans)
        _add_wishes(span_s, now_s - kept_s, wishes)
    names = ("span_s", "number", "tenant", "node", "device_type", "device_s", "cpu_s", "first_s", "last_s")
    keys = ", ".join(f":{name}" for name in names)
    rows = [dict(zip(names, (*key, *sums), strict=True)) for key, sums in spans.items()]
    if rows:
        op.get_bind().execute(sa.text(f"INSERT INTO usage_spans ({', '.join(names)}) VALUES ({keys})"), rows)
    wished = [{"span_s": span_s, "number": number, "tenant": tenant} for span_s, number, tenant in wishes]
    if wished:
        op.get_bind().execute(sa.text("INSERT INTO wishes VALUES (:span_s, :number, :tenant)"), wished)


def _newest(query: str) -> float:
    return float(op.get_bind().execute(sa.text(query)).scalar() or 0.0)


def _add_hours(since_s: float) -> None:
    """By hour there are sums already: an old platform has millions of lines."""
    names = "hour, tenant, node, device_type"
    op.get_bind().execute(
        sa.text(
            f"INSERT INTO usage_spans SELECT {HOUR_S}, {names}, sum(device_s), sum(cpu_s), hour * 3600.0, "
            f"(hour + 1) * 3600.0 FROM usage_hours WHERE hour >= :since GROUP BY {names}"
        ),
        {"since": int(since_s // HOUR_S)},
    )


def _add_usage(span_s: int, since_s: float, spans: dict[tuple[int, int, str, str, str], list[float]]) -> None:
    columns = "tenant, node, device_type, devices, from_s, to_s, cpu_s"
    query = sa.text(f"SELECT {columns} FROM usage WHERE to_s > :since AND to_s > from_s")
    for tenant, node, kind, devices, from_s, to_s, cpu_s in op.get_bind().execute(query, {"since": since_s}):
        for number, begin_s, end_s in _pieces(from_s, to_s, span_s):
            sums = spans.setdefault((span_s, number, tenant, node, kind), [0.0, 0.0, begin_s, end_s])
            sums[0] += devices * (end_s - begin_s)
            sums[1] += cpu_s * (end_s - begin_s) / (to_s - from_s)
            sums[2], sums[3] = min(sums[2], begin_s), max(sums[3], end_s)


def _add_wishes(span_s: int, since_s: float, wishes: set[tuple[int, int, str]]) -> None:
    query = sa.text("SELECT tenant, submitted_s, finished_s FROM jobs WHERE finished_s > :since")
    for tenant, from_s, to_s in op.get_bind().execute(query, {"since": since_s}):
        begin = int(max(from_s, since_s) // span_s)
        wishes.update((span_s, number, tenant) for number in range(begin, int(to_s // span_s) + 1))


def _pieces(from_s: float, to_s: float, span_s: int) -> Iterator[tuple[int, float, float]]:
    begin_s = from_s
    while begin_s < to_s:
        number = int(begin_s // span_s)
        end_s = min(to_s, float((number + 1) * span_s))
        yield number, begin_s, end_s
        begin_s = end_s


# ---------------------------------------------------------------- what may go, and what may not

TIMES = {"usage": ("to_s", "the usage ledger is append-only"), "audit": ("time_s", "the audit log is append-only")}
"""By table: the column that says how old a row is, and what whoever removes a younger one is told."""


def _refuse_sqlite() -> None:
    for table, (column, why) in TIMES.items():
        since = f"coalesce((SELECT since_s FROM retained WHERE kind = '{table}'), -1e300)"
        op.execute(f"DROP TRIGGER {table}_refuses_delete")
        op.execute(f"CREATE TRIGGER {table}_refuses_delete BEFORE DELETE ON {table} WHEN OLD.{column} > {since} "
                   f"BEGIN SELECT RAISE(ABORT, '{why}'); END")  # fmt: skip


def _refuse_postgresql() -> None:
    for table, (column, why) in TIMES.items():
        since = f"coalesce((SELECT since_s FROM retained WHERE kind = '{table}'), '-infinity'::double precision)"
        op.execute(f"DROP TRIGGER {table}_refuses_changes ON {table}")
        op.execute(f"CREATE TRIGGER {table}_refuses_changes BEFORE UPDATE OR TRUNCATE ON {table} "
                   f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_refuse()")  # fmt: skip
        op.execute(f"CREATE FUNCTION {table}_refuse_young() RETURNS trigger LANGUAGE plpgsql AS "
                   f"$$ BEGIN IF OLD.{column} > {since} THEN RAISE EXCEPTION '{why}' "
                   "USING ERRCODE = 'restrict_violation'; END IF; RETURN OLD; END $$")  # fmt: skip
        op.execute(f"CREATE TRIGGER {table}_refuses_delete BEFORE DELETE ON {table} "
                   f"FOR EACH ROW EXECUTE FUNCTION {table}_refuse_young()")  # fmt: skip
