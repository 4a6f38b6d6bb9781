"""Time zones of users.

Revision ID: 0003_time_zones
Revises: 0002_jobs_usage_alerts
"""

import sqlalchemy as sa
from alembic import op

revision = "0003_time_zones"
down_revision = "0002_jobs_usage_alerts"
branch_labels = None
depends_on = None

_COLUMNS = ("time_zone", "browser_time_zone")


def upgrade() -> None:
    """Add the columns; so far, no user has chosen a time zone."""
    for name in _COLUMNS:
        column = sa.Column(name, sa.String(length=64), nullable=False, server_default="")
        op.add_column("users", column)


def downgrade() -> None:
    """Drop the columns."""
    for name in _COLUMNS:
        op.drop_column("users", name)
