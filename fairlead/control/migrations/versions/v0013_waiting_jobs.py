"""An index of the jobs that wait, in the order of the queue: a page of it sorts nothing, however many there are."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    queued = sa.text("phase = 'queued'")
    place = ["phase", "submitted_s", "id"]
    op.create_index("ix_jobs_queued", "jobs", place, sqlite_where=queued, postgresql_where=queued)
