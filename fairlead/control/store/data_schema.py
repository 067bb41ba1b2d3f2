"""The tables of data sets and lineage: which versions exist, and which job read and wrote which."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    String,
    Table,
)

from fairlead.control.store.schema import Key, metadata

# One column per field of records.DataSet; a test keeps them in step.
datasets = Table(
    "datasets",
    metadata,
    Column("tenant", Key, ForeignKey("tenants.name"), nullable=False),
    Column("name", Key, nullable=False),
    Column("version", Key, nullable=False),  # the hash of its content
    Column("number", Integer, nullable=False),  # 1, 2, 3, ... in order of creation
    Column("parent", Key),  # the version that it appends to
    Column("rows", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("recipe", String, nullable=False),  # hash of the fitted recipe; empty: none
    Column("manifest", JSON, nullable=False),
    Column("fitted", JSON(none_as_null=True)),  # the fitted recipe itself
    Column("job", Key, nullable=False),  # that loaded it
    Column("created_s", Double, nullable=False),
    Column("created_by", String, nullable=False),
    PrimaryKeyConstraint("tenant", "name", "version"),
    Index(None, "tenant", "created_s"),
)

lineage = Table(
    "lineage",
    metadata,
    Column("job", Key, primary_key=True),
    Column("tenant", Key, nullable=False),
    Column("record", JSON, nullable=False),  # its workers' final report; empty: not there yet
    Column("again", JSON(none_as_null=True)),  # the job that a rerun repeats; NULL: not a rerun
    Column("created_s", Double, nullable=False),
)

# Which versions a job read; also answers which jobs read a version.
lineage_inputs = Table(
    "lineage_inputs",
    metadata,
    Column("job", Key, nullable=False),
    Column("tenant", Key, nullable=False),
    Column("name", Key, nullable=False),
    Column("version", Key, nullable=False),
    PrimaryKeyConstraint("job", "name", "version"),
    Index(None, "tenant", "name", "version"),
)
