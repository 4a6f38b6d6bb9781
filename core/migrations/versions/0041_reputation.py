"""Ratings of providers, their evidence by day, and the history of their reputations.

Revision ID: 0041_reputation
Revises: 0040_verification
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0041_reputation"
down_revision = "0040_verification"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add tables and columns."""
    op.create_table(
        "ratings",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("contract_id", sa.String(length=36), nullable=False),
        sa.Column("provider_id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("month", sa.String(length=7), nullable=False),
        sa.Column("stars", sa.Integer(), nullable=False),
        sa.Column("comment", sa.String(length=1000), nullable=False),
        sa.Column("created_by", sa.String(length=254), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("updated_at", UTCDateTime(), nullable=False),
        sa.Column("gpu_milliseconds", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["contract_id"], ["contracts.id"], name="fk_ratings_contract_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_ratings"),
        sa.UniqueConstraint("contract_id", "month", name="uq_ratings_contract_id_month"),
    )
    with op.batch_alter_table("ratings", schema=None) as batch_op:
        batch_op.create_index("ix_ratings_provider_id_updated_at", ["provider_id", "updated_at"])
        batch_op.create_index("ix_ratings_tenant_id", ["tenant_id"])
        batch_op.create_index("ix_ratings_updated_at", ["updated_at"])
    op.create_table(
        "evidence_days",
        sa.Column("provider_id", sa.String(length=36), nullable=False),
        sa.Column("day_at", UTCDateTime(), nullable=False),
        sa.Column("dimension", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("total", sa.Double(), nullable=False),
        sa.Column("good", sa.Double(), nullable=False),
        sa.Column("measured", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["provider_id"],
            ["tenants.id"],
            name="fk_evidence_days_provider_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            *("provider_id", "day_at", "dimension", "subject", "kind"), name="pk_evidence_days"
        ),
    )
    op.create_table(
        "reputation_days",
        sa.Column("provider_id", sa.String(length=36), nullable=False),
        sa.Column("day_at", UTCDateTime(), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("mean", sa.Double(), nullable=False),
        sa.Column("low", sa.Double(), nullable=False),
        sa.Column("high", sa.Double(), nullable=False),
        sa.Column("dimensions", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["provider_id"],
            ["tenants.id"],
            name="fk_reputation_days_provider_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("provider_id", "day_at", name="pk_reputation_days"),
    )
    with op.batch_alter_table("market_accounts", schema=None) as batch_op:
        for name, default in (("mean", "0.5"), ("low", "0.1354"), ("high", "0.8646")):
            column: sa.Column[float] = sa.Column(
                f"reputation_{name}", sa.Double(), server_default=default, nullable=False
            )
            batch_op.add_column(column)


def downgrade() -> None:
    """Remove them."""
    with op.batch_alter_table("market_accounts", schema=None) as batch_op:
        for name in ("high", "low", "mean"):
            batch_op.drop_column(f"reputation_{name}")
    op.drop_table("reputation_days")
    op.drop_table("evidence_days")
    op.drop_table("ratings")
