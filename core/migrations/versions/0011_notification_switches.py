"""Switches of receivers and routes, a level of rules, and what paging services were notified of.

Revision ID: 0011_notification_switches
Revises: 0010_tickets_and_messages
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0011_notification_switches"
down_revision = "0010_tickets_and_messages"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column(
        "receivers",
        sa.Column("sends_resolved", sa.Boolean(), nullable=False, server_default=sa.true()),
    )
    op.add_column("notification_policies", sa.Column("time_intervals", sa.JSON(), nullable=True))
    for name in ("info_threshold", "info_reset"):
        op.add_column("rules", sa.Column(name, sa.Double(), nullable=True))
    op.add_column("delivered_alerts", sa.Column("acknowledged_at", UTCDateTime(), nullable=True))


def downgrade() -> None:
    """Remove the columns."""
    op.drop_column("delivered_alerts", "acknowledged_at")
    for name in ("info_reset", "info_threshold"):
        op.drop_column("rules", name)
    op.drop_column("notification_policies", "time_intervals")
    op.drop_column("receivers", "sends_resolved")
