"""Standings of providers, and what follows from them.

Revision ID: 0042_consequences
Revises: 0041_reputation
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0042_consequences"
down_revision = "0041_reputation"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables and columns."""
    with op.batch_alter_table("market_accounts", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("listing", sa.String(length=32), server_default="normal", nullable=False)
        )
        batch_op.add_column(
            sa.Column("placement_factor", sa.Double(), server_default="1", nullable=False)
        )
        batch_op.add_column(
            sa.Column("max_contract_gpus", sa.Integer(), server_default="0", nullable=False)
        )
    with op.batch_alter_table("grants", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("placement_factor", sa.Double(), server_default="1", nullable=False)
        )
    op.create_table(
        "provider_fees",
        sa.Column("provider_id", sa.String(length=36), nullable=False),
        sa.Column("month_at", UTCDateTime(), nullable=False),
        sa.Column("points", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("provider_id", "month_at", name="pk_provider_fees"),
    )
    op.create_table(
        "standing_policies",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("note", sa.String(length=500), nullable=False),
        sa.Column("created_by", sa.String(length=254), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_standing_policies"),
        sa.UniqueConstraint("number", name="uq_standing_policies_number"),
    )
    op.create_table(
        "provider_standings",
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("since", UTCDateTime(), nullable=False),
        sa.Column("counted_from", UTCDateTime(), nullable=True),
        sa.Column("mend_until", UTCDateTime(), nullable=True),
        sa.Column("suspension_id", sa.String(length=36), nullable=True),
        sa.Column("is_by_operator", sa.Boolean(), nullable=False),
        sa.Column("returns_at", UTCDateTime(), nullable=True),
        sa.Column("probation_until", UTCDateTime(), nullable=True),
        sa.Column("fee_points", sa.BigInteger(), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("breaches", sa.Integer(), nullable=False),
        sa.Column("breach_limit", sa.Integer(), nullable=False),
        sa.Column("failing_appliances", sa.Integer(), nullable=False),
        sa.Column("evaluated_at", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name="fk_provider_standings_tenant_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_provider_standings"),
    )
    with op.batch_alter_table("provider_standings", schema=None) as batch_op:
        batch_op.create_index("ix_provider_standings_state", ["state"], unique=False)
    op.create_table(
        "standing_events",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("at", UTCDateTime(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("actor", sa.String(length=254), nullable=False),
        sa.Column("policy_number", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_standing_events_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_standing_events"),
    )
    with op.batch_alter_table("standing_events", schema=None) as batch_op:
        batch_op.create_index("ix_standing_events_tenant_id_at", ["tenant_id", "at"], unique=False)
        batch_op.create_index("ix_standing_events_at", ["at"], unique=False)
    op.create_table(
        "standing_appeals",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("suspension_id", sa.String(length=36), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_by", sa.String(length=254), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("decided_by", sa.String(length=254), nullable=False),
        sa.Column("decided_at", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_standing_appeals_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_standing_appeals"),
        sa.UniqueConstraint("suspension_id", name="uq_standing_appeals_suspension_id"),
    )
    with op.batch_alter_table("standing_appeals", schema=None) as batch_op:
        batch_op.create_index("ix_standing_appeals_tenant_id", ["tenant_id"], unique=False)
        batch_op.create_index("ix_standing_appeals_state", ["state"], unique=False)


def downgrade() -> None:
    """Remove them."""
    op.drop_table("standing_appeals")
    op.drop_table("standing_events")
    op.drop_table("provider_standings")
    op.drop_table("standing_policies")
    op.drop_table("provider_fees")
    with op.batch_alter_table("grants", schema=None) as batch_op:
        batch_op.drop_column("placement_factor")
    with op.batch_alter_table("market_accounts", schema=None) as batch_op:
        batch_op.drop_column("max_contract_gpus")
        batch_op.drop_column("placement_factor")
        batch_op.drop_column("listing")
