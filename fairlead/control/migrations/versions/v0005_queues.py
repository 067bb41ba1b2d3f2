"""Tenants stand above and below each other, with devices by type that are guaranteed, or never exceeded."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

KEY = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("tenants", sa.Column("parent", KEY))
    for name in ("guarantee", "most"):  # the default is for tenants that are there already
        op.add_column("tenants", sa.Column(name, sa.JSON(), nullable=False, server_default="{}"))
