"""Runs of backups, and what a restore leaves open.

Revision ID: 0015_backups
Revises: 0014_server_processes
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0015_backups"
down_revision = "0014_server_processes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, and add the column."""
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "backup_runs",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("requested_at", UTCDateTime(), nullable=False),
        sa.Column("finished_at", UTCDateTime(), nullable=True),
        sa.Column("data_at", UTCDateTime(), nullable=True),
        sa.Column("snapshot", sa.String(length=64), nullable=False),
        sa.Column("total_bytes", big, nullable=False),
        sa.Column("added_bytes", big, nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_backup_runs")),
    )
    op.add_column(
        "attempts",
        sa.Column("awaits_report", sa.Boolean(), nullable=False, server_default=sa.false()),
    )


def downgrade() -> None:
    """Remove the column and the table."""
    op.drop_column("attempts", "awaits_report")
    op.drop_table("backup_runs")
