"""Reservations of appliances for projects.

Revision ID: 0025_reservations
Revises: 0024_gangs
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0025_reservations"
down_revision = "0024_gangs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "reservations",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("project_id", sa.String(length=36), nullable=True),
        sa.Column("appliance_ids", sa.JSON(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=True),
        sa.Column("schedule", sa.String(length=200), nullable=False),
        sa.Column("time_zone", sa.String(length=64), nullable=False),
        sa.Column("duration_seconds", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.String(length=36), nullable=True),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["created_by"],
            ["users.id"],
            name=op.f("fk_reservations_created_by"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_reservations_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservations")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_reservations_tenant_id_name")),
    )


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("reservations")
