"""How queues are ordered, decayed usage, and forecasts of starts.

Revision ID: 0023_fair_share
Revises: 0022_projects
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0023_fair_share"
down_revision = "0022_projects"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables and add the columns."""
    op.create_table(
        "fair_share_usage",
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("project_id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("gpu_seconds", sa.Double(), nullable=False),
        sa.Column("cpu_seconds", sa.Double(), nullable=False),
        sa.Column("memory_byte_seconds", sa.Double(), nullable=False),
        sa.Column("half_life_seconds", sa.Double(), nullable=False),
        sa.Column("decayed_to", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_fair_share_usage_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "tenant_id", "project_id", "user_id", name=op.f("pk_fair_share_usage")
        ),
    )
    op.create_table(
        "start_forecasts",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("made_at", UTCDateTime(), nullable=False),
        sa.Column("expected_start_at", UTCDateTime(), nullable=False),
        sa.Column("late_seconds", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_start_forecasts_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_start_forecasts")),
    )
    op.create_index("ix_start_forecasts_job_id", "start_forecasts", ["job_id"])
    op.create_index(
        "ix_start_forecasts_tenant_id_made_at", "start_forecasts", ["tenant_id", "made_at"]
    )
    op.add_column("tenant_queue_settings", sa.Column("ordering", sa.JSON(), nullable=True))
    is_charged: sa.Column[bool] = sa.Column(
        "is_charged", sa.Boolean(), server_default=sa.false(), nullable=False
    )
    op.add_column("attempts", is_charged)
    op.create_index("ix_attempts_is_charged_finished_at", "attempts", ["is_charged", "finished_at"])


def downgrade() -> None:
    """Remove the columns and the tables."""
    op.drop_index("ix_attempts_is_charged_finished_at", "attempts")
    op.drop_column("attempts", "is_charged")
    op.drop_column("tenant_queue_settings", "ordering")
    op.drop_table("start_forecasts")
    op.drop_table("fair_share_usage")
