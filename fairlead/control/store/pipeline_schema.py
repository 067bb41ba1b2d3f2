"""The tables of pipelines and their stages."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from fairlead.control.store.schema import Key, metadata

pipelines = Table(
    "pipelines",
    metadata,
    Column("id", Key, primary_key=True),
    Column("tenant", Key, ForeignKey("tenants.name"), nullable=False),
    Column("name", Key, nullable=False),
    Column("phase", String, nullable=False, index=True),  # running, succeeded, failed, cancelled
    Column("submitted_s", Double, nullable=False),
    Column("submitted_by", String, nullable=False),
    Column("finished_s", Double),
    Column("cancelled_by", String),  # cancellation was requested; stages may still be ending
    Column("message", Text),
    Column("key", Key),  # Idempotency-Key
    Column("request_digest", String, nullable=False),
    Column("spec", JSON, nullable=False),
    UniqueConstraint("tenant", "key"),
    Index(None, "tenant", "submitted_s", "id"),
    Index(None, "name", "submitted_s"),
    Index(None, "tenant", "finished_s"),
)

stages = Table(
    "stages",
    metadata,
    Column("pipeline", Key, ForeignKey("pipelines.id"), nullable=False),
    Column("name", Key, nullable=False),
    Column("tenant", Key, nullable=False),
    Column("fingerprint", Key, nullable=False),
    Column("phase", String, nullable=False),
    Column("job", Key),
    Column("message", Text),
    Column("result", JSON(none_as_null=True)),  # reference to its result
    Column("kept", Boolean, nullable=False),  # whether a later pipeline may reuse the result
    Column("reused", Key),  # the pipeline whose result it reused
    Column("rebuilds", Integer, nullable=False),
    Column("fresh", Boolean, nullable=False),
    Column("started_s", Double),
    Column("finished_s", Double),
    PrimaryKeyConstraint("pipeline", "name"),
    Index(None, "tenant", "fingerprint"),
    Index(None, "job"),
)
