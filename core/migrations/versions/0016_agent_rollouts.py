"""Rollouts of agents in stages, and what appliances say about updates.

Revision ID: 0016_agent_rollouts
Revises: 0015_backups
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0016_agent_rollouts"
down_revision = "0015_backups"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables, and add the columns."""
    op.create_table(
        "agent_rollouts",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("version", sa.String(length=50), nullable=False),
        sa.Column("requirements_sha256", sa.String(length=64), nullable=False),
        sa.Column("sites", sa.JSON(), nullable=False),
        sa.Column("stage_percents", sa.JSON(), nullable=False),
        sa.Column("soak_seconds", sa.Integer(), nullable=False),
        sa.Column("max_failures", sa.Integer(), nullable=False),
        sa.Column("accepted_failures", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("soaking_since", UTCDateTime(), nullable=True),
        sa.Column("created_by", sa.String(length=36), nullable=True),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("ended_at", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_agent_rollouts_tenant_id_tenants"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["created_by"],
            ["users.id"],
            name=op.f("fk_agent_rollouts_created_by_users"),
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agent_rollouts")),
    )
    op.create_index("ix_agent_rollouts_tenant_id", "agent_rollouts", ["tenant_id"])
    op.create_index("ix_agent_rollouts_state", "agent_rollouts", ["state"])
    op.create_table(
        "appliance_updates",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("rollout_id", sa.String(length=36), nullable=False),
        sa.Column("appliance_id", sa.String(length=36), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("message", sa.String(length=500), nullable=False),
        sa.Column("from_version", sa.String(length=50), nullable=False),
        sa.Column("health_before", sa.String(length=32), nullable=False),
        sa.Column("started_at", UTCDateTime(), nullable=True),
        sa.Column("ended_at", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_appliance_updates_tenant_id_tenants"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["rollout_id"],
            ["agent_rollouts.id"],
            name=op.f("fk_appliance_updates_rollout_id_agent_rollouts"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["appliance_id"],
            ["appliances.id"],
            name=op.f("fk_appliance_updates_appliance_id_appliances"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_appliance_updates")),
        sa.UniqueConstraint(
            "rollout_id",
            "appliance_id",
            name=op.f("uq_appliance_updates_rollout_id_appliance_id"),
        ),
    )
    op.create_index("ix_appliance_updates_tenant_id", "appliance_updates", ["tenant_id"])
    op.create_index(
        "ix_appliance_updates_state_started_at", "appliance_updates", ["state", "started_at"]
    )
    op.add_column(
        "appliances",
        sa.Column("can_update", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.add_column("appliances", sa.Column("update_id", sa.String(length=36), nullable=True))


def downgrade() -> None:
    """Remove the columns and the tables."""
    op.drop_column("appliances", "update_id")
    op.drop_column("appliances", "can_update")
    op.drop_table("appliance_updates")
    op.drop_table("agent_rollouts")
