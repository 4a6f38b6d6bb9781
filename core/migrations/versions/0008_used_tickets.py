"""Tickets to web pages of jobs work once.

Revision ID: 0008_used_tickets
Revises: 0005_delivered_alerts
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0008_used_tickets"
down_revision = "0005_delivered_alerts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "used_tickets",
        sa.Column("id", sa.String(length=64), primary_key=True),
        sa.Column("used_at", UTCDateTime(), nullable=False),
    )
    op.create_index("ix_used_tickets_used_at", "used_tickets", ["used_at"])


def downgrade() -> None:
    """Remove it."""
    op.drop_table("used_tickets")
