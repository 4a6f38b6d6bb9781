"""Fleet advice: the figures of each tenant, and advice that its admins dismissed.

Revision ID: 0045_fleet_advice
Revises: 0044_autoscaling
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from core.db import UTCDateTime

revision = "0045_fleet_advice"
down_revision = "0044_autoscaling"
branch_labels = None
depends_on = None

_SUMS = ("capacity_gpu_hours", "allocated_gpu_hours", "idle_gpu_hours", "short_gpu_hours")


def upgrade() -> None:
    """Create the tables."""
    long_text = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
    op.create_table(
        "fleet_advice",
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("progress_percent", sa.Integer(), nullable=False),
        sa.Column("message", sa.String(length=500), nullable=False),
        sa.Column("requested_at", UTCDateTime(), nullable=False),
        sa.Column("started_at", UTCDateTime(), nullable=True),
        sa.Column("finished_at", UTCDateTime(), nullable=True),
        sa.Column("computed_at", UTCDateTime(), nullable=True),
        sa.Column("figures", long_text, nullable=True),
        sa.Column("gpus", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Double(), nullable=False) for name in _SUMS),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_fleet_advice_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_fleet_advice")),
    )
    with op.batch_alter_table("fleet_advice", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_fleet_advice_state"), ["state"], unique=False)
    op.create_table(
        "advice_dismissals",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("advice_key", sa.String(length=250), nullable=False),
        sa.Column("dismissed_at", UTCDateTime(), nullable=False),
        sa.Column("dismissed_until", UTCDateTime(), nullable=False),
        sa.Column("dismissed_by", sa.String(length=36), nullable=True),
        sa.ForeignKeyConstraint(
            ["dismissed_by"],
            ["users.id"],
            name=op.f("fk_advice_dismissals_dismissed_by"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_advice_dismissals_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_advice_dismissals")),
        sa.UniqueConstraint(
            "tenant_id", "advice_key", name="uq_advice_dismissals_tenant_id_advice_key"
        ),
    )


def downgrade() -> None:
    """Remove the tables."""
    op.drop_table("advice_dismissals")
    op.drop_table("fleet_advice")
