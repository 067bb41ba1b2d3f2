"""Pipelines, and how far each of their stages is."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

KEY = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "pipelines",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("tenant", KEY, sa.ForeignKey("tenants.name", name="fk_pipelines_tenant"), nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("submitted_s", sa.Double(), nullable=False),
        sa.Column("submitted_by", sa.String(), nullable=False),
        sa.Column("finished_s", sa.Double()),
        sa.Column("cancelled_by", sa.String()),
        sa.Column("message", sa.Text()),
        sa.Column("key", KEY),
        sa.Column("request_digest", sa.String(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.UniqueConstraint("tenant", "key", name="uq_pipelines_tenant_key"),
    )
    op.create_index("ix_pipelines_phase", "pipelines", ["phase"])
    op.create_index("ix_pipelines_tenant_submitted_s_id", "pipelines", ["tenant", "submitted_s", "id"])
    op.create_index("ix_pipelines_name_submitted_s", "pipelines", ["name", "submitted_s"])
    op.create_table(
        "stages",
        sa.Column("pipeline", KEY, sa.ForeignKey("pipelines.id", name="fk_stages_pipeline"), nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("tenant", KEY, nullable=False),
        sa.Column("fingerprint", KEY, nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("job", KEY),
        sa.Column("message", sa.Text()),
        sa.Column("result", sa.JSON()),
        sa.Column("kept", sa.Boolean(), nullable=False),
        sa.Column("reused", KEY),
        sa.Column("rebuilds", sa.Integer(), nullable=False),
        sa.Column("fresh", sa.Boolean(), nullable=False),
        sa.Column("started_s", sa.Double()),
        sa.Column("finished_s", sa.Double()),
        sa.PrimaryKeyConstraint("pipeline", "name", name="pk_stages"),
    )
    op.create_index("ix_stages_tenant_fingerprint", "stages", ["tenant", "fingerprint"])
