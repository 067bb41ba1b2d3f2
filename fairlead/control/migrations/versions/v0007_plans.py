"""Generations keep the plan that they run, and models what is known about them."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

KEY = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("generations", sa.Column("plan", sa.JSON()))
    op.create_table(
        "models",
        sa.Column("tenant", KEY, sa.ForeignKey("tenants.name", name="fk_models_tenant"), nullable=False),
        sa.Column("key", KEY, nullable=False),
        sa.Column("profile", sa.JSON()),
        sa.Column("why_not", sa.Text(), nullable=False),
        sa.Column("seen", sa.JSON(), nullable=False),
        sa.Column("banned", sa.JSON(), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key", name="pk_models"),
    )
    op.create_index("ix_models_tenant_created_s", "models", ["tenant", "created_s"])
