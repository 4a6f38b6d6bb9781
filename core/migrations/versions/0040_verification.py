"""Verification of appliances: states, challenges, what identifies hardware.

Appliances that are on offer stay so for a week, in which they are verified.

Revision ID: 0040_verification
Revises: 0039_market
"""

from datetime import timedelta

import sqlalchemy as sa
from alembic import op

from core.clock import utc_now
from core.db import UTCDateTime

revision = "0040_verification"
down_revision = "0039_market"
branch_labels = None
depends_on = None

GRACE = timedelta(days=7)


def upgrade() -> None:
    """Add the tables, and the time that appliances on offer have."""
    verifications = op.create_table(
        "verifications",
        sa.Column("appliance_id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("since", UTCDateTime(), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.Column("findings", sa.JSON(), nullable=False),
        sa.Column("checked_at", UTCDateTime(), nullable=True),
        sa.Column("next_at", UTCDateTime(), nullable=False),
        sa.Column("grace_until", UTCDateTime(), nullable=True),
        sa.Column("challenge_number", sa.Integer(), nullable=False),
        sa.Column("unanswered", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["appliance_id"],
            ["appliances.id"],
            name="fk_verifications_appliance_id",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_verifications_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("appliance_id", name="pk_verifications"),
    )
    with op.batch_alter_table("verifications", schema=None) as batch_op:
        batch_op.create_index("ix_verifications_tenant_id_state", ["tenant_id", "state"])
        batch_op.create_index("ix_verifications_next_at", ["next_at"])
    op.create_table(
        "challenges",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("appliance_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("partners", sa.JSON(), nullable=False),
        sa.Column("outcome", sa.String(length=32), nullable=False),
        sa.Column("ordered_at", UTCDateTime(), nullable=False),
        sa.Column("answered_at", UTCDateTime(), nullable=True),
        sa.Column("ended_at", UTCDateTime(), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("findings", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_challenges_tenant_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["appliance_id"],
            ["appliances.id"],
            name="fk_challenges_appliance_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_challenges"),
        sa.UniqueConstraint("appliance_id", "number", name="uq_challenges_appliance_id_number"),
    )
    with op.batch_alter_table("challenges", schema=None) as batch_op:
        batch_op.create_index("ix_challenges_tenant_id_ended_at", ["tenant_id", "ended_at"])
        batch_op.create_index("ix_challenges_outcome_ordered_at", ["outcome", "ordered_at"])
    op.create_table(
        "hardware_identities",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("appliance_id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("value", sa.String(length=250), nullable=False),
        sa.Column("since", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["appliance_id"],
            ["appliances.id"],
            name="fk_hardware_identities_appliance_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_hardware_identities"),
    )
    with op.batch_alter_table("hardware_identities", schema=None) as batch_op:
        batch_op.create_index("ix_hardware_identities_appliance_id", ["appliance_id"])
        batch_op.create_index("ix_hardware_identities_value_kind", ["value", "kind"])
    op.create_table(
        "compliance_notices",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("fact", sa.String(length=100), nullable=False),
        sa.Column("valid_until", sa.String(length=10), nullable=False),
        sa.Column("sent_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name="fk_compliance_notices_tenant_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_compliance_notices"),
        sa.UniqueConstraint(
            "tenant_id",
            "fact",
            "valid_until",
            name="uq_compliance_notices_tenant_id_fact_valid_until",
        ),
    )
    with op.batch_alter_table("compliance_notices", schema=None) as batch_op:
        batch_op.create_index("ix_compliance_notices_tenant_id", ["tenant_id"])
    _give_time(verifications)


def _give_time(verifications: sa.Table) -> None:
    offered = sa.table("offered_appliances", sa.column("appliance_id"), sa.column("provider_id"))
    connection, now = op.get_bind(), utc_now()
    rows = connection.execute(sa.select(offered.c.appliance_id, offered.c.provider_id)).all()
    if rows:
        connection.execute(
            sa.insert(verifications),
            [
                {
                    "appliance_id": row.appliance_id,
                    "tenant_id": row.provider_id,
                    "state": "unverified",
                    "since": now,
                    "reason": "",
                    "findings": [],
                    "next_at": now,
                    "grace_until": now + GRACE,
                    "challenge_number": 0,
                    "unanswered": 0,
                }
                for row in rows
            ],
        )


def downgrade() -> None:
    """Remove the tables."""
    for name in ("compliance_notices", "hardware_identities", "challenges", "verifications"):
        op.drop_table(name)
