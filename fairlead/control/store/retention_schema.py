"""The tables of what outlasts rows: sums and counts that are kept while they are there, and what may go."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, Integer, PrimaryKeyConstraint, String, Table, text

from fairlead.control.store.schema import Key, metadata

# How many ended jobs there are, so that nobody counts them: an old platform has many.
ended_jobs = Table(
    "ended_jobs",
    metadata,
    Column("tenant", Key, nullable=False),
    Column("phase", Key, nullable=False),
    Column("jobs", BigInteger, nullable=False),
    PrimaryKeyConstraint("tenant", "phase"),
)

# What an ended job left in its folder. A job that left nothing has no row; what was removed since takes 0 bytes.
keepsakes = Table(
    "keepsakes",
    metadata,
    Column("job", Key, primary_key=True),
    Column("tenant", Key, nullable=False),
    Column("finished_s", Double, nullable=False),
    Column("parts", String, nullable=False),  # the folders that it left, such as "logs output"
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

# In which spans of time a tenant had a job that wanted devices; of jobs that have ended.
wishes = Table(
    "wishes",
    metadata,
    Column("span_s", Integer, nullable=False),
    Column("number", Integer, nullable=False),  # of the span, since the epoch
    Column("tenant", Key, nullable=False),
    PrimaryKeyConstraint("span_s", "number", "tenant"),
)

# The ledger by tenant and node, in spans of five minutes and of an hour: charts, fairness and reports are made of it.
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

# What jobs used whose rows are gone; how many they were is noted on the day on which each began.
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

# Up to when rows of a table were given up. The ledger and the audit log let nothing go that is younger.
retained = Table(
    "retained",
    metadata,
    Column("kind", Key, primary_key=True),
    Column("since_s", Double, nullable=False),
)
