"""Targets of forwarded lines, and their queue.

Revision ID: 0021_log_forwards
Revises: 0020_event_webhooks
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from core.db import UTCDateTime

revision = "0021_log_forwards"
down_revision = "0020_event_webhooks"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    long_text = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
    op.create_table(
        "log_forwards",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("url", sa.String(length=500), nullable=False),
        sa.Column("token", sa.String(length=1000), nullable=False),
        sa.Column("sources", sa.JSON(), nullable=False),
        sa.Column("minimum_level", sa.String(length=32), nullable=False),
        sa.Column("is_enabled", sa.Boolean(), nullable=False),
        sa.Column("position", sa.String(length=36), nullable=False),
        sa.Column("sent_lines", sa.BigInteger(), nullable=False),
        sa.Column("refused_lines", sa.BigInteger(), nullable=False),
        sa.Column("dropped_lines", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=False),
        sa.Column("next_try_at", UTCDateTime(), nullable=False),
        sa.Column("last_sent_at", UTCDateTime(), nullable=True),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_log_forwards_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_forwards")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_log_forwards_tenant_id_name")),
    )
    op.create_table(
        "log_forward_batches",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("appliance_id", sa.String(length=36), nullable=False),
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("attempt_number", sa.Integer(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("line_count", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("data", long_text, nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_log_forward_batches_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_forward_batches")),
    )
    op.create_index(
        "ix_log_forward_batches_tenant_id_id", "log_forward_batches", ["tenant_id", "id"]
    )


def downgrade() -> None:
    """Remove the tables."""
    op.drop_table("log_forward_batches")
    op.drop_table("log_forwards")
