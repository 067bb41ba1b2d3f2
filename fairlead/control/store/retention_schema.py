"""The tables that outlast deleted rows: sums, counts and retention marks."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, PrimaryKeyConstraint, String, Table, text

from fairlead.control.store.schema import Key, metadata

# Running count of ended jobs: counting them would be slow on an old platform.
ended_jobs = Table(
    "ended_jobs",
    metadata,
    Column("tenant", Key, nullable=False),
    Column("phase", Key, nullable=False),
    Column("jobs", BigInteger, nullable=False),
    PrimaryKeyConstraint("tenant", "phase"),
)

# Files that an ended job left. A job without files has no row; removed files count 0 bytes.
keepsakes = Table(
    "keepsakes",
    metadata,
    Column("job", Key, primary_key=True),
    Column("tenant", Key, nullable=False),
    Column("finished_s", Double, nullable=False),
    Column("parts", String, nullable=False),  # the folders left, such as "logs output"
    Column("size_bytes", BigInteger),  # NULL: not measured yet
    Index(
        "ix_keepsakes_held",
        "tenant",
        "finished_s",
        "job",
        "size_bytes",
        sqlite_where=text("size_bytes > 0"),
        postgresql_where=text("size_bytes > 0"),
    ),
)

# Demand: the time spans in which a tenant had an unfinished job, recorded when jobs end.
wishes = Table(
    "wishes",
    metadata,
    Column("span_s", Integer, nullable=False),
    Column("number", Integer, nullable=False),  # of the span, since the epoch
    Column("tenant", Key, nullable=False),
    PrimaryKeyConstraint("span_s", "number", "tenant"),
)

# Sums of the ledger by tenant and node, per five minutes and per hour, for charts, fairness and reports.
usage_spans = Table(
    "usage_spans",
    metadata,
    Column("span_s", Integer, nullable=False),
    Column("number", Integer, nullable=False),  # of the span, since the epoch
    Column("tenant", Key, nullable=False),
    Column("node", Key, nullable=False),
    Column("device_type", Key, nullable=False),
    Column("device_s", Double, nullable=False),
    Column("cpu_s", Double, nullable=False),
    Column("first_s", Double, nullable=False),
    Column("last_s", Double, nullable=False),
    PrimaryKeyConstraint("span_s", "number", "tenant", "node", "device_type"),
)

# Usage of deleted jobs by day; a job is counted on the day of its first usage.
usage_pruned = Table(
    "usage_pruned",
    metadata,
    Column("day", Integer, nullable=False),
    Column("tenant", Key, nullable=False),
    Column("submitted_by", Key, nullable=False),
    Column("node", Key, nullable=False),
    Column("device_type", Key, nullable=False),
    Column("device_s", Double, nullable=False),
    Column("cpu_s", Double, nullable=False),
    Column("jobs", BigInteger, nullable=False),
    PrimaryKeyConstraint("day", "tenant", "submitted_by", "node", "device_type"),
)

# Retention marks: rows before this time may be deleted. Triggers protect younger rows of ledger and audit log.
retained = Table(
    "retained",
    metadata,
    Column("kind", Key, primary_key=True),
    Column("since_s", Double, nullable=False),
)
