"""Simulations of recorded jobs.

Revision ID: 0027_simulations
Revises: 0026_gpu_slices
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from core.db import UTCDateTime

revision = "0027_simulations"
down_revision = "0026_gpu_slices"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    long_text = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
    op.create_table(
        "simulations",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("since", UTCDateTime(), nullable=False),
        sa.Column("until", UTCDateTime(), nullable=False),
        sa.Column("changes", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("progress_percent", sa.Integer(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_by", sa.String(length=36), nullable=True),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("started_at", UTCDateTime(), nullable=True),
        sa.Column("finished_at", UTCDateTime(), nullable=True),
        sa.Column("results", long_text, nullable=True),
        sa.ForeignKeyConstraint(
            ["created_by"],
            ["users.id"],
            name=op.f("fk_simulations_created_by"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_simulations_tenant_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_simulations")),
    )
    with op.batch_alter_table("simulations", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_simulations_state"), ["state"], unique=False)
        batch_op.create_index(batch_op.f("ix_simulations_tenant_id"), ["tenant_id"], unique=False)


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("simulations")
