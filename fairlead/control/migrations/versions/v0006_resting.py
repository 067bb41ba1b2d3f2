"""Nodes sleep, and classes of jobs are known to slow each other down."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

KEY = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "node_rests",
        sa.Column("node", KEY, nullable=False),
        sa.Column("from_s", sa.Double(), nullable=False),
        sa.Column("to_s", sa.Double()),
        sa.Column("woken_in_s", sa.Double()),
        sa.PrimaryKeyConstraint("node", "from_s", name="pk_node_rests"),
    )
    op.create_table(
        "neighbours",
        sa.Column("kind", KEY, nullable=False),
        sa.Column("beside", KEY, nullable=False),
        sa.Column("lost", sa.Double(), nullable=False),
        sa.Column("seen", sa.Integer(), nullable=False),
        sa.Column("changed_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "beside", name="pk_neighbours"),
    )
