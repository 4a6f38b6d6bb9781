"""Budgets, and holds of jobs.

Revision ID: 0035_budgets
Revises: 0034_billing
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0035_budgets"
down_revision = "0034_billing"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables, and the amount to an index of billing lines."""
    with op.batch_alter_table("billing_lines", schema=None) as batch_op:
        batch_op.create_index("ix_billing_lines_tenant_id_at_amount", ["tenant_id", "at", "amount"])
        batch_op.drop_index("ix_billing_lines_tenant_id_at")
    op.create_table(
        "budgets",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("target", sa.String(length=32), nullable=False),
        sa.Column("target_id", sa.String(length=36), nullable=False),
        sa.Column("target_name", sa.String(length=254), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("grace_seconds", sa.Integer(), nullable=False),
        sa.Column("notify", sa.JSON(), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("period_at", UTCDateTime(), nullable=True),
        sa.Column("level_percent", sa.Integer(), nullable=False),
        sa.Column("spent", sa.BigInteger(), nullable=False),
        sa.Column("forecast", sa.BigInteger(), nullable=False),
        sa.Column("reached_at", UTCDateTime(), nullable=True),
        sa.Column("evaluated_at", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_budgets_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_budgets"),
        sa.UniqueConstraint(
            "tenant_id", "target", "target_id", name="uq_budgets_tenant_id_target_target_id"
        ),
    )
    with op.batch_alter_table("budgets", schema=None) as batch_op:
        batch_op.create_index("ix_budgets_tenant_id", ["tenant_id"], unique=False)
    op.create_table(
        "job_holds",
        sa.Column("source_id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("project_ids", sa.JSON(), nullable=True),
        sa.Column("user_id", sa.String(length=36), nullable=True),
        sa.Column("is_for_rentals", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("held_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_job_holds_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("source_id", name="pk_job_holds"),
    )
    with op.batch_alter_table("job_holds", schema=None) as batch_op:
        batch_op.create_index("ix_job_holds_tenant_id", ["tenant_id"], unique=False)


def downgrade() -> None:
    """Remove the tables, and restore the index."""
    op.drop_table("job_holds")
    op.drop_table("budgets")
    with op.batch_alter_table("billing_lines", schema=None) as batch_op:
        batch_op.create_index("ix_billing_lines_tenant_id_at", ["tenant_id", "at"])
        batch_op.drop_index("ix_billing_lines_tenant_id_at_amount")
