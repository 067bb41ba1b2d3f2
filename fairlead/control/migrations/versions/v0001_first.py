"""The first schema: leadership, tenants and tokens, jobs and generations, events, metrics, and the usage ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

KEY = sa.String().with_variant(sa.String(collation="C"), "postgresql")
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
APPEND_ONLY = {"usage": "the usage ledger is append-only", "audit": "the audit log is append-only"}


def upgrade() -> None:
    _create_platform()
    _create_jobs()
    _create_history()
    op.execute("INSERT INTO leadership (id, epoch, holder, expires_s) VALUES (1, 0, NULL, 0)")
    for table, why in APPEND_ONLY.items():
        if op.get_context().dialect.name == "postgresql":
            _refuse_changes_postgresql(table, why)
        else:
            _refuse_changes_sqlite(table, why)


def _refuse_changes_sqlite(table: str, why: str) -> None:
    for change in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_refuses_{change.lower()} BEFORE {change} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{why}'); END"
        )


def _refuse_changes_postgresql(table: str, why: str) -> None:
    op.execute(
        f"CREATE FUNCTION {table}_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{why}' USING ERRCODE = 'restrict_violation'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_refuses_changes BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_refuse()"
    )


def _create_platform() -> None:
    op.create_table(
        "leadership",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.String()),
        sa.Column("expires_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_leadership"),
    )
    op.create_table(
        "tenants",
        sa.Column("name", KEY, nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("quota", sa.Integer()),
        sa.Column("sla", sa.JSON(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_tenants"),
        sa.UniqueConstraint("number", name="uq_tenants_number"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", KEY, nullable=False),
        sa.Column("tenant", KEY),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.Column("expires_s", sa.Double()),
        sa.Column("revoked_s", sa.Double()),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name="fk_tokens_tenant"),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    )
    op.create_index("ix_tokens_tenant", "tokens", ["tenant"])
    op.create_table(
        "bundles",
        sa.Column("tenant", KEY, nullable=False),
        sa.Column("digest", KEY, nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name="fk_bundles_tenant"),
        sa.PrimaryKeyConstraint("tenant", "digest", name="pk_bundles"),
    )
    op.create_table(
        "node_states",
        sa.Column("node", KEY, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("node", name="pk_node_states"),
    )
    op.create_table(
        "node_cursors",
        sa.Column("node", KEY, nullable=False),
        sa.Column("incarnation", KEY, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("node", "incarnation", name="pk_node_cursors"),
    )
    op.create_table(
        "scheduler_memory",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_scheduler_memory"),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", KEY, nullable=False),
        sa.Column("tenant", KEY, nullable=False),
        sa.Column("name", KEY, nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("submitted_s", sa.Double(), nullable=False),
        sa.Column("submitted_by", sa.String(), nullable=False),
        sa.Column("min_workers", sa.Integer(), nullable=False),
        sa.Column("max_workers", sa.Integer(), nullable=False),
        sa.Column("demand", sa.JSON(), nullable=False),
        sa.Column("device_type", sa.String()),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("elastic", sa.Boolean(), nullable=False),
        sa.Column("training", sa.Boolean(), nullable=False),
        sa.Column("retries", sa.Integer(), nullable=False),
        sa.Column("start_by_s", sa.Double()),
        sa.Column("finish_by_s", sa.Double()),
        sa.Column("started_s", sa.Double()),
        sa.Column("finished_s", sa.Double()),
        sa.Column("since_s", sa.Double(), nullable=False),
        sa.Column("then", sa.String()),
        sa.Column("outcome", sa.String()),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("next_worker", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("recoveries", sa.Integer(), nullable=False),
        sa.Column("preemptions", sa.Integer(), nullable=False),
        sa.Column("resizes", sa.Integer(), nullable=False),
        sa.Column("recovery_s", sa.Double(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("total_steps", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("loss", sa.Double()),
        sa.Column("samples_per_s", sa.Double(), nullable=False),
        sa.Column("batch_size", sa.BigInteger(), nullable=False),
        sa.Column("speeds", sa.JSON(), nullable=False),
        sa.Column("snapshot_step", sa.BigInteger(), nullable=False),
        sa.Column("message", sa.Text()),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name="fk_jobs_tenant"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_name_submitted_s", "jobs", ["name", "submitted_s"])
    op.create_index("ix_jobs_phase_tenant", "jobs", ["phase", "tenant"])
    op.create_index("ix_jobs_submitted_s_id", "jobs", ["submitted_s", "id"])
    op.create_index("ix_jobs_tenant_submitted_s_id", "jobs", ["tenant", "submitted_s", "id"])
    op.create_table(
        "submissions",
        sa.Column("job", KEY, nullable=False),
        sa.Column("tenant", KEY, nullable=False),
        sa.Column("key", KEY),
        sa.Column("request_digest", sa.String(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job", name="pk_submissions"),
        sa.UniqueConstraint("tenant", "key", name="uq_submissions_tenant_key"),
    )
    op.create_table(
        "generations",
        sa.Column("job", KEY, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("members", sa.JSON(), nullable=False),
        sa.Column("reason_code", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.Column("init_method", sa.String()),
        sa.Column("running_s", sa.Double()),
        sa.Column("ended_s", sa.Double()),
        sa.Column("outcome", sa.String()),
        sa.Column("first_step", sa.BigInteger()),
        sa.Column("broken_s", sa.Double()),
        sa.Column("metered_s", sa.Double()),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_generations_job"),
        sa.PrimaryKeyConstraint("job", "number", name="pk_generations"),
    )
    op.create_index("ix_generations_phase", "generations", ["phase"])


def _create_history() -> None:
    op.create_table(
        "events",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("time_s", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("tenant", KEY),
        sa.Column("job", KEY),
        sa.Column("node", sa.String()),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_job_id", "events", ["job", "id"])
    op.create_index("ix_events_tenant_id", "events", ["tenant", "id"])
    op.create_table(
        "metrics",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("job", KEY, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("points", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name="fk_metrics_job"),
        sa.PrimaryKeyConstraint("id", name="pk_metrics"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_metrics_job_id", "metrics", ["job", "id"])
    op.create_table(
        "usage",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("job", KEY, nullable=False),
        sa.Column("tenant", KEY, nullable=False),
        sa.Column("submitted_by", sa.String(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("device_type", sa.String(), nullable=False),
        sa.Column("devices", sa.Integer(), nullable=False),
        sa.Column("speed", sa.Double(), nullable=False),
        sa.Column("from_s", sa.Double(), nullable=False),
        sa.Column("to_s", sa.Double(), nullable=False),
        sa.Column("cpu_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_usage"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_usage_job_id", "usage", ["job", "id"])
    op.create_index("ix_usage_to_s_tenant", "usage", ["to_s", "tenant"])
    op.create_table(
        "audit",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("time_s", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
        sqlite_autoincrement=True,
    )
