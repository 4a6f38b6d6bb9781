"""Lines of appliances, and files of lines that can be searched.

Revision ID: 0017_logs
Revises: 0016_agent_rollouts
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from core.db import UTCDateTime

revision = "0017_logs"
down_revision = "0016_agent_rollouts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    long_text = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
    op.create_table(
        "log_batches",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("appliance_id", sa.String(length=36), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("received_at", UTCDateTime(), nullable=False),
        sa.Column("first_ns", sa.BigInteger(), nullable=False),
        sa.Column("last_ns", sa.BigInteger(), nullable=False),
        sa.Column("line_count", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("data", long_text, nullable=False),
        sa.ForeignKeyConstraint(
            ["appliance_id"],
            ["appliances.id"],
            name=op.f("fk_log_batches_appliance_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_log_batches_tenant_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_batches")),
        sa.UniqueConstraint("appliance_id", "key", name=op.f("uq_log_batches_appliance_id_key")),
    )
    op.create_index("ix_log_batches_tenant_id_last_ns", "log_batches", ["tenant_id", "last_ns"])
    op.create_index(op.f("ix_log_batches_received_at"), "log_batches", ["received_at"])
    op.create_table(
        "log_files",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("attempt_id", sa.String(length=36), nullable=True),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("first_ns", sa.BigInteger(), nullable=False),
        sa.Column("last_ns", sa.BigInteger(), nullable=False),
        sa.Column("line_count", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name=op.f("fk_log_files_attempt_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_log_files_tenant_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_log_files")),
        sa.UniqueConstraint("attempt_id", name=op.f("uq_log_files_attempt_id")),
    )
    op.create_index("ix_log_files_tenant_id_last_ns", "log_files", ["tenant_id", "last_ns"])


def downgrade() -> None:
    """Remove the tables."""
    op.drop_table("log_files")
    op.drop_table("log_batches")
