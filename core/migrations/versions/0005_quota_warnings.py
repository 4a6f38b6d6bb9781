"""Series as servers count them, quotas that were warned of, and messages without a receiver.

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "series_counts",
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("server", sa.String(length=64), nullable=False),
        sa.Column("series", sa.Integer(), nullable=False),
        sa.Column("counted_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_series_counts_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "server", name=op.f("pk_series_counts")),
    )
    op.create_table(
        "quota_warnings",
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("quota", sa.String(length=32), nullable=False),
        sa.Column("level_percent", sa.Integer(), nullable=False),
        sa.Column("changed_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_quota_warnings_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "quota", name=op.f("pk_quota_warnings")),
    )
    with op.batch_alter_table("notifications") as batch_op:
        batch_op.add_column(
            sa.Column("address", sa.String(length=254), nullable=False, server_default="")
        )
        batch_op.alter_column("receiver_id", existing_type=sa.String(36), nullable=True)
    with op.batch_alter_table("notifications") as batch_op:
        batch_op.alter_column("address", existing_type=sa.String(254), server_default=None)


def downgrade() -> None:
    op.execute("DELETE FROM notifications WHERE receiver_id IS NULL")
    with op.batch_alter_table("notifications") as batch_op:
        batch_op.alter_column("receiver_id", existing_type=sa.String(36), nullable=False)
        batch_op.drop_column("address")
    op.drop_table("quota_warnings")
    op.drop_table("series_counts")
