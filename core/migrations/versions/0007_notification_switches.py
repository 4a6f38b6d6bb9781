"""Switches of receivers and routes, and what paging services were notified of.

Revision ID: 0007_notification_switches
Revises: 0006_late_samples
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0007_notification_switches"
down_revision = "0006_late_samples"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column(
        "receivers",
        sa.Column("sends_resolved", sa.Boolean(), nullable=False, server_default=sa.true()),
    )
    op.add_column("notification_policies", sa.Column("time_intervals", sa.JSON(), nullable=True))
    op.add_column("delivered_alerts", sa.Column("acknowledged_at", UTCDateTime(), nullable=True))


def downgrade() -> None:
    """Remove the columns."""
    op.drop_column("delivered_alerts", "acknowledged_at")
    op.drop_column("notification_policies", "time_intervals")
    op.drop_column("receivers", "sends_resolved")
