"""Where the ranks of a generation meet has a name and a port instead of a file."""

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.execute("ALTER TABLE generations RENAME COLUMN init_method TO rendezvous")
