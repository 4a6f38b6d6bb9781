"""Fields of a job's spec that have no column of their own.

Revision ID: 0012_job_options
Revises: 0011_notification_switches
"""

import sqlalchemy as sa
from alembic import op

revision = "0012_job_options"
down_revision = "0011_notification_switches"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("jobs", sa.Column("options", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Remove the column."""
    op.drop_column("jobs", "options")
