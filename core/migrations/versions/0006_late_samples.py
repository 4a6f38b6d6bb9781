"""Samples that arrived late, and alerts of them.

Revision ID: 0006_late_samples
Revises: 0005_delivered_alerts
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0006_late_samples"
down_revision = "0005_delivered_alerts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the column."""
    op.add_column("alerts", sa.Column("late_at", UTCDateTime(), nullable=True))
    op.create_table(
        "late_samples",
        sa.Column("id", sa.String(length=36), primary_key=True),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("appliance_id", sa.String(length=36), nullable=False),
        sa.Column("measurements", sa.JSON(), nullable=False),
        sa.Column("first_at", UTCDateTime(), nullable=False),
        sa.Column("last_at", UTCDateTime(), nullable=False),
        sa.Column("arrived_at", UTCDateTime(), nullable=False),
    )


def downgrade() -> None:
    """Remove them."""
    op.drop_table("late_samples")
    op.drop_column("alerts", "late_at")
