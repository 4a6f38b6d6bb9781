"""Reservations of rented appliances, and what they book.

Revision ID: 0046_bookings
Revises: 0045_fleet_advice
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0046_bookings"
down_revision = "0045_fleet_advice"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the columns."""
    op.create_table(
        "reservation_bookings",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("reservation_id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("project_id", sa.String(length=36), nullable=True),
        sa.Column("provider_id", sa.String(length=36), nullable=False),
        sa.Column("contract_id", sa.String(length=36), nullable=False),
        sa.Column("offer_name", sa.String(length=100), nullable=False),
        sa.Column("appliance_id", sa.String(length=36), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("gpu_model", sa.String(length=200), nullable=False),
        sa.Column("schedule", sa.String(length=200), nullable=False),
        sa.Column("time_zone", sa.String(length=64), nullable=False),
        sa.Column("duration_seconds", sa.Integer(), nullable=False),
        sa.Column("since", UTCDateTime(), nullable=False),
        sa.Column("until", UTCDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservation_bookings")),
    )
    with op.batch_alter_table("reservation_bookings", schema=None) as batch_op:
        batch_op.create_index(
            "ix_reservation_bookings_provider_id_until", ["provider_id", "until"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_reservation_bookings_reservation_id"), ["reservation_id"], unique=False
        )
        batch_op.create_index("ix_reservation_bookings_until", ["until"], unique=False)
    with op.batch_alter_table("reservations", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("appliance_count", sa.Integer(), server_default="0", nullable=False)
        )
        batch_op.add_column(
            sa.Column("gpu_model", sa.String(length=100), server_default="", nullable=False)
        )
        batch_op.add_column(
            sa.Column("max_gpu_hour_price", sa.Double(), server_default="0", nullable=False)
        )
        batch_op.add_column(sa.Column("rental", sa.JSON(), nullable=True))
    with op.batch_alter_table("grants", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("highest_price", sa.BigInteger(), server_default="0", nullable=False)
        )


def downgrade() -> None:
    """Remove them."""
    with op.batch_alter_table("grants", schema=None) as batch_op:
        batch_op.drop_column("highest_price")
    op.execute("DELETE FROM reservations WHERE appliance_count > 0")
    with op.batch_alter_table("reservations", schema=None) as batch_op:
        batch_op.drop_column("rental")
        batch_op.drop_column("max_gpu_hour_price")
        batch_op.drop_column("gpu_model")
        batch_op.drop_column("appliance_count")
    op.drop_table("reservation_bookings")
