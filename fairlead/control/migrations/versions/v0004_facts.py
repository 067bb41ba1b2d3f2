"""Jobs say more about themselves: their workload class, how long they take, and what else a policy may want to know."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("facts", sa.JSON(), nullable=False, server_default="{}"))
