"""Tokens with which other programs send samples, and what sends those of a host without an agent.

Revision ID: 0018_write_tokens
Revises: 0017_logs
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0018_write_tokens"
down_revision = "0017_logs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, and add the column."""
    op.create_table(
        "write_tokens",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("appliance_pattern", sa.String(length=100), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("created_by", sa.String(length=36), nullable=True),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("expires_at", UTCDateTime(), nullable=False),
        sa.Column("last_used_at", UTCDateTime(), nullable=True),
        sa.Column("revoked_at", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_write_tokens_tenant_id_tenants"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["created_by"],
            ["users.id"],
            name=op.f("fk_write_tokens_created_by_users"),
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_write_tokens")),
        sa.UniqueConstraint("secret_hash", name=op.f("uq_write_tokens_secret_hash")),
    )
    op.create_index(op.f("ix_write_tokens_tenant_id"), "write_tokens", ["tenant_id"])
    op.add_column(
        "appliances",
        sa.Column("sender", sa.String(length=100), nullable=False, server_default=""),
    )


def downgrade() -> None:
    """Remove the table and the column."""
    with op.batch_alter_table("appliances") as table:
        table.drop_column("sender")
    op.drop_table("write_tokens")
