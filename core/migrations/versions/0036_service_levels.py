"""Breaches of service levels.

Revision ID: 0036_service_levels
Revises: 0035_budgets
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0036_service_levels"
down_revision = "0035_budgets"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "service_breaches",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("contract_id", sa.String(length=36), nullable=False),
        sa.Column("provider_id", sa.String(length=36), nullable=False),
        sa.Column("customer_id", sa.String(length=36), nullable=False),
        sa.Column("version_number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.String(length=36), nullable=False),
        sa.Column("since", UTCDateTime(), nullable=False),
        sa.Column("until", UTCDateTime(), nullable=False),
        sa.Column("promised", sa.Double(), nullable=False),
        sa.Column("measured", sa.Double(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("credit", sa.BigInteger(), nullable=True),
        sa.Column("detected_at", UTCDateTime(), nullable=False),
        sa.Column("settled_at", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["contract_id"],
            ["contracts.id"],
            name="fk_service_breaches_contract_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_service_breaches"),
        sa.UniqueConstraint(
            "contract_id", "kind", "subject", name="uq_service_breaches_contract_id_kind_subject"
        ),
    )
    with op.batch_alter_table("service_breaches", schema=None) as batch_op:
        batch_op.create_index("ix_service_breaches_customer_id", ["customer_id"])
        batch_op.create_index("ix_service_breaches_provider_id_since", ["provider_id", "since"])
        batch_op.create_index("ix_service_breaches_settled_at", ["settled_at"])


def downgrade() -> None:
    """Remove it."""
    op.drop_table("service_breaches")
