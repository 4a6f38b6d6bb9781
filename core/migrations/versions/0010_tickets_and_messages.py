"""Tickets to web pages of jobs work once, and messages of tenants are counted.

Revision ID: 0010_tickets_and_messages
Revises: 0009_quotas
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0010_tickets_and_messages"
down_revision = "0009_quotas"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "used_tickets",
        sa.Column("id", sa.String(length=64), primary_key=True),
        sa.Column("used_at", UTCDateTime(), nullable=False),
    )
    op.create_index("ix_used_tickets_used_at", "used_tickets", ["used_at"])
    op.create_table(
        "message_counts",
        sa.Column(
            "tenant_id",
            sa.String(length=36),
            sa.ForeignKey("tenants.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("subject", sa.String(length=36), primary_key=True),
        sa.Column("started_at", UTCDateTime(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
    )


def downgrade() -> None:
    """Remove them."""
    op.drop_table("message_counts")
    op.drop_table("used_tickets")
