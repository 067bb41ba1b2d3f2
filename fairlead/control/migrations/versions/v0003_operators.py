"""The operator's tools: sums of the ledger, what was said about budgets, when a token was used, whose audit it is."""

from collections import defaultdict

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

KEY = sa.String().with_variant(sa.String(collation="C"), "postgresql")
HOUR_S, DAY_S = 3600.0, 86400.0


def upgrade() -> None:
    op.add_column("tokens", sa.Column("used_s", sa.Double()))
    op.add_column("audit", sa.Column("tenant", KEY))
    op.create_index("ix_audit_tenant_id", "audit", ["tenant", "id"])
    hours = op.create_table(
        "usage_hours",
        sa.Column("hour", sa.Integer(), nullable=False),
        sa.Column("job", KEY, nullable=False),
        sa.Column("node", KEY, nullable=False),
        sa.Column("device_type", KEY, nullable=False),
        sa.Column("tenant", KEY, nullable=False),
        sa.Column("submitted_by", KEY, nullable=False),
        sa.Column("device_s", sa.Double(), nullable=False),
        sa.Column("cpu_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hour", "job", "node", "device_type", name="pk_usage_hours"),
    )
    days = op.create_table(
        "usage_days",
        sa.Column("day", sa.Integer(), nullable=False),
        sa.Column("tenant", KEY, nullable=False),
        sa.Column("device_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("day", "tenant", name="pk_usage_days"),
    )
    op.create_table(
        "budget_notes",
        sa.Column("tenant", KEY, nullable=False),
        sa.Column("since_s", sa.Double(), nullable=False),
        sa.Column("device_hours", sa.Double(), nullable=False),
        sa.Column("kind", KEY, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "since_s", "device_hours", "kind", name="pk_budget_notes"),
    )
    _add_up(hours, days)


def _add_up(hours: sa.Table, days: sa.Table) -> None:
    """The sums of what was used before there were any."""
    columns = "job, node, device_type, tenant, submitted_by, devices, from_s, to_s, cpu_s"
    by_hour: dict[tuple[int, str, str, str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    by_day: dict[tuple[int, str], float] = defaultdict(float)
    for *names, devices, from_s, to_s, cpu_s in op.get_bind().execute(sa.text(f"SELECT {columns} FROM usage")):
        begin_s = from_s
        while begin_s < to_s:
            hour = int(begin_s // HOUR_S)
            end_s = min(to_s, (hour + 1) * HOUR_S)
            sums = by_hour[hour, *names]
            sums[0] += devices * (end_s - begin_s)
            sums[1] += cpu_s * (end_s - begin_s) / (to_s - from_s)
            by_day[int(begin_s // DAY_S), names[3]] += devices * (end_s - begin_s)
            begin_s = end_s
    keys = ("hour", "job", "node", "device_type", "tenant", "submitted_by")
    rows = [dict(zip(keys, key, strict=True), device_s=s[0], cpu_s=s[1]) for key, s in by_hour.items()]
    if rows:
        op.bulk_insert(hours, rows)
        op.bulk_insert(days, [{"day": d, "tenant": t, "device_s": s} for (d, t), s in by_day.items()])
