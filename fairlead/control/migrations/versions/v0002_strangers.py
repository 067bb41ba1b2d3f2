"""Adds a policy and a budget to each tenant, and tables for tenants' secrets and web page sessions."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

KEY = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    for name in ("policy", "budget"):  # the default is for tenants that are there already
        op.add_column("tenants", sa.Column(name, sa.JSON(), nullable=False, server_default="{}"))
    op.create_table(
        "secrets",
        sa.Column("tenant", KEY, nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("ciphertext", sa.LargeBinary(), nullable=False),
        sa.Column("changed_s", sa.Double(), nullable=False),
        sa.Column("changed_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name", name="pk_secrets"),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name="fk_secrets_tenant"),
    )
    op.create_table(
        "sessions",
        sa.Column("digest", KEY, nullable=False),
        sa.Column("token", KEY, nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.Column("expires_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_sessions"),
        sa.ForeignKeyConstraint(["token"], ["tokens.id"], name="fk_sessions_token"),
    )
