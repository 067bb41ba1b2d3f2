"""The database tables in SQLAlchemy Core. The migrations create them."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# Compared byte by byte on both databases, so that a prefix is an index range and pages sort alike.
Key = String().with_variant(String(collation="C"), "postgresql")
# SQLite autoincrements only a column whose type is exactly INTEGER.
Serial = BigInteger().with_variant(Integer(), "sqlite")

leadership = Table(
    "leadership",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # one row, id 1
    Column("epoch", BigInteger, nullable=False),
    Column("holder", String),  # NULL: nobody leads
    Column("expires_s", Double, nullable=False),
)

tenants = Table(
    "tenants",
    metadata,
    Column("name", Key, primary_key=True),
    Column("weight", Double, nullable=False),
    Column("quota", Integer),
    Column("sla", JSON, nullable=False),
    Column("number", Integer, nullable=False, unique=True),
    Column("created_s", Double, nullable=False),
    Column("policy", JSON, nullable=False),
    Column("budget", JSON, nullable=False),  # empty: none
    Column("parent", Key),
    Column("guarantee", JSON, nullable=False),
    Column("most", JSON, nullable=False),
)

secrets = Table(
    "secrets",
    metadata,
    Column("tenant", Key, ForeignKey("tenants.name"), nullable=False),
    Column("name", Key, nullable=False),
    Column("ciphertext", LargeBinary, nullable=False),
    Column("changed_s", Double, nullable=False),
    Column("changed_by", String, nullable=False),
    PrimaryKeyConstraint("tenant", "name"),
)

# Web page logins: the digest of the cookie (never the cookie itself) and the token it stands for.
sessions = Table(
    "sessions",
    metadata,
    Column("digest", Key, primary_key=True),
    Column("token", Key, ForeignKey("tokens.id"), nullable=False),
    Column("created_s", Double, nullable=False),
    Column("expires_s", Double, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Key, primary_key=True),
    Column("tenant", Key, ForeignKey("tenants.name"), index=True),
    Column("role", String, nullable=False),
    Column("label", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("expires_s", Double),
    Column("revoked_s", Double),
    Column("used_s", Double),  # last use, to about a minute
)

# One column per field of records.Job; a test keeps them in step.
jobs = Table(
    "jobs",
    metadata,
    Column("id", Key, primary_key=True),
    Column("tenant", Key, ForeignKey("tenants.name"), nullable=False),
    Column("name", Key, nullable=False),
    Column("phase", String, nullable=False),
    Column("submitted_s", Double, nullable=False),
    Column("submitted_by", String, nullable=False),
    Column("min_workers", Integer, nullable=False),
    Column("max_workers", Integer, nullable=False),
    Column("demand", JSON, nullable=False),
    Column("device_type", String),
    Column("priority", Integer, nullable=False),
    Column("elastic", Boolean, nullable=False),
    Column("training", Boolean, nullable=False),
    Column("retries", Integer, nullable=False),
    Column("start_by_s", Double),
    Column("finish_by_s", Double),
    Column("started_s", Double),
    Column("finished_s", Double),
    Column("since_s", Double, nullable=False),
    Column("then", String),
    Column("outcome", String),
    Column("generation", Integer, nullable=False),
    Column("next_worker", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("deaths", JSON, nullable=False),  # worker deaths: recovery.Death
    Column("back_off_until_s", Double),
    Column("back_off_why", Text),
    Column("recoveries", Integer, nullable=False),
    Column("preemptions", Integer, nullable=False),
    Column("resizes", Integer, nullable=False),
    Column("recovery_s", Double, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("total_steps", BigInteger, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("loss", Double),
    Column("samples_per_s", Double, nullable=False),
    Column("batch_size", BigInteger, nullable=False),
    Column("speeds", JSON, nullable=False),
    Column("snapshot_step", BigInteger, nullable=False),
    Column("message", Text),
    Column("result", JSON, nullable=False),
    Column("facts", JSON, nullable=False),  # the author's statements about the job, for the policy
    Index(None, "phase", "tenant"),
    Index(None, "tenant", "submitted_s", "id"),
    Index(None, "submitted_s", "id"),
    Index(None, "name", "submitted_s"),
    Index(None, "tenant", "finished_s", "id"),
    Index(None, "finished_s", "tenant", "submitted_s"),
    Index(
        "ix_jobs_queued",
        "phase",
        "submitted_s",
        "id",
        sqlite_where=text("phase = 'queued'"),
        postgresql_where=text("phase = 'queued'"),
    ),
)

# Submissions never change, so they are kept apart from the job's row, which every progress report rewrites.
# A submission is inserted first (hence no foreign key): its unique constraints decide whether the job is new.
submissions = Table(
    "submissions",
    metadata,
    Column("job", Key, primary_key=True),
    Column("tenant", Key, nullable=False),
    Column("key", Key),  # Idempotency-Key
    Column("request_digest", String, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("code", Key),  # digest of the code bundle
    UniqueConstraint("tenant", "key"),
    Index(None, "tenant", "code"),
)

generations = Table(
    "generations",
    metadata,
    Column("job", Key, ForeignKey("jobs.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("phase", String, nullable=False, index=True),
    Column("members", JSON, nullable=False),
    Column("reason_code", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("rendezvous", String),
    Column("running_s", Double),
    Column("ended_s", Double),
    Column("outcome", String),
    Column("first_step", BigInteger),
    Column("broken_s", Double),
    Column("metered_s", Double),
    Column("plan", JSON(none_as_null=True)),  # the plan and its predicted speed; NULL: unknown
    PrimaryKeyConstraint("job", "number"),
)

events = Table(
    "events",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("time_s", Double, nullable=False),
    Column("kind", String, nullable=False),
    Column("text", Text, nullable=False),
    Column("tenant", Key),
    Column("job", Key),
    Column("node", String),
    Column("facts", JSON, nullable=False),
    Index(None, "tenant", "id"),
    Index(None, "job", "id"),
    Index(
        "ix_events_budget_used_up",
        "time_s",
        sqlite_where=text("kind = 'budget-used-up'"),
        postgresql_where=text("kind = 'budget-used-up'"),
    ),
    sqlite_autoincrement=True,  # a follower's cursor must never be reused
)

metrics = Table(
    "metrics",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("job", Key, ForeignKey("jobs.id"), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("points", JSON, nullable=False),
    Index(None, "job", "id"),
    sqlite_autoincrement=True,
)

# The usage ledger. No foreign keys: usage stays on record after its job is deleted.
usage = Table(
    "usage",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("job", Key, nullable=False),
    Column("tenant", Key, nullable=False),
    Column("submitted_by", String, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("node", String, nullable=False),
    Column("device_type", String, nullable=False),
    Column("devices", Integer, nullable=False),
    Column("speed", Double, nullable=False),
    Column("from_s", Double, nullable=False),
    Column("to_s", Double, nullable=False),
    Column("cpu_s", Double, nullable=False),
    Index(None, "to_s", "tenant"),
    Index(None, "job", "id"),
    sqlite_autoincrement=True,
)

# Sums of the ledger, updated in the transaction that adds a line: a sum costs the same however long the ledger is.
usage_hours = Table(
    "usage_hours",
    metadata,
    Column("hour", Integer, nullable=False),  # since the epoch
    Column("job", Key, nullable=False),
    Column("node", Key, nullable=False),
    Column("device_type", Key, nullable=False),
    Column("tenant", Key, nullable=False),
    Column("submitted_by", Key, nullable=False),
    Column("device_s", Double, nullable=False),
    Column("cpu_s", Double, nullable=False),
    PrimaryKeyConstraint("hour", "job", "node", "device_type"),
    Index(None, "job"),
)

usage_days = Table(
    "usage_days",
    metadata,
    Column("day", Integer, nullable=False),  # since the epoch, in UTC
    Column("tenant", Key, nullable=False),
    Column("device_s", Double, nullable=False),
    PrimaryKeyConstraint("day", "tenant"),
)

# Budget warnings that a tenant already got in a period.
budget_notes = Table(
    "budget_notes",
    metadata,
    Column("tenant", Key, nullable=False),
    Column("since_s", Double, nullable=False),
    Column("device_hours", Double, nullable=False),
    Column("kind", Key, nullable=False),
    PrimaryKeyConstraint("tenant", "since_s", "device_hours", "kind"),
)

node_states = Table(
    "node_states",
    metadata,
    Column("node", Key, primary_key=True),
    Column("state", String, nullable=False),
)

node_cursors = Table(
    "node_cursors",
    metadata,
    Column("node", Key, nullable=False),
    Column("incarnation", Key, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    PrimaryKeyConstraint("node", "incarnation"),
)

# When nodes slept (no end: asleep now). The energy report is made of these.
node_rests = Table(
    "node_rests",
    metadata,
    Column("node", Key, nullable=False),
    Column("from_s", Double, nullable=False),
    Column("to_s", Double),
    Column("woken_in_s", Double),  # how long waking took; NULL: unknown, or the node was lost
    PrimaryKeyConstraint("node", "from_s"),
)

# Measured interference: the part of its speed that a class of jobs loses beside another class.
neighbours = Table(
    "neighbours",
    metadata,
    Column("kind", Key, nullable=False),
    Column("beside", Key, nullable=False),
    Column("lost", Double, nullable=False),
    Column("seen", Integer, nullable=False),
    Column("changed_s", Double, nullable=False),
    PrimaryKeyConstraint("kind", "beside"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("time_s", Double, nullable=False),
    Column("actor", String, nullable=False),
    Column("action", String, nullable=False),
    Column("target", String, nullable=False),
    Column("detail", JSON, nullable=False),
    Column("tenant", Key),  # whose resources the entry is about; NULL: the platform's
    Index(None, "tenant", "id"),
    sqlite_autoincrement=True,
)

scheduler_memory = Table(
    "scheduler_memory",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # one row, id 1
    Column("body", JSON, nullable=False),
)

bundles = Table(
    "bundles",
    metadata,
    Column("tenant", Key, ForeignKey("tenants.name"), nullable=False),
    Column("digest", Key, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_s", Double, nullable=False),
    PrimaryKeyConstraint("tenant", "digest"),
)

# Model profiles, one per code bundle and parameters, shared by all jobs of the tenant.
models = Table(
    "models",
    metadata,
    Column("tenant", Key, ForeignKey("tenants.name"), nullable=False),
    Column("key", Key, nullable=False),
    Column("profile", JSON(none_as_null=True)),  # planning.ModelProfile; NULL: profiling failed
    Column("why_not", Text, nullable=False),
    Column("seen", JSON, nullable=False),  # by kind of plan: measured time / predicted time
    Column("banned", JSON, nullable=False),  # kinds of plans that failed with this model, and how
    Column("created_s", Double, nullable=False),
    PrimaryKeyConstraint("tenant", "key"),
    Index(None, "tenant", "created_s"),
)
