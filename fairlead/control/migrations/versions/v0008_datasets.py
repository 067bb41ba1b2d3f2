"""Data sets with their versions, and what every job came from."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

KEY = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "datasets",
        sa.Column("tenant", KEY, sa.ForeignKey("tenants.name", name="fk_datasets_tenant"), nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("version", KEY, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("parent", KEY),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("recipe", sa.String(), nullable=False),
        sa.Column("manifest", sa.JSON(), nullable=False),
        sa.Column("fitted", sa.JSON()),
        sa.Column("job", KEY, nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name", "version", name="pk_datasets"),
    )
    op.create_index("ix_datasets_tenant_created_s", "datasets", ["tenant", "created_s"])
    op.create_table(
        "lineage",
        sa.Column("job", KEY, nullable=False),
        sa.Column("tenant", KEY, nullable=False),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.Column("again", sa.JSON()),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job", name="pk_lineage"),
    )
    op.create_table(
        "lineage_inputs",
        sa.Column("job", KEY, nullable=False),
        sa.Column("tenant", KEY, nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("version", KEY, nullable=False),
        sa.PrimaryKeyConstraint("job", "name", "version", name="pk_lineage_inputs"),
    )
    op.create_index("ix_lineage_inputs_tenant_name_version", "lineage_inputs", ["tenant", "name", "version"])
