"""What webhooks of events get, and from when on.

Revision ID: 0020_event_webhooks
Revises: 0019_promql_rules
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0020_event_webhooks"
down_revision = "0019_promql_rules"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("receivers", sa.Column("topics", sa.JSON(), nullable=True))
    op.add_column("receivers", sa.Column("events_after", UTCDateTime(), nullable=True))


def downgrade() -> None:
    """Remove the columns."""
    op.drop_column("receivers", "events_after")
    op.drop_column("receivers", "topics")
