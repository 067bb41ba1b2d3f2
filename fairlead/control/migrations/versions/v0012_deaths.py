"""What workers died of, and until when their jobs back off."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("deaths", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("jobs", sa.Column("back_off_until_s", sa.Double()))
    op.add_column("jobs", sa.Column("back_off_why", sa.Text()))
    op.drop_column("jobs", "losses")
