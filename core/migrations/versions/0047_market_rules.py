"""Gaps of bookings, pulls of images, uncharged use, cancellations, and costs of services.

Revision ID: 0047_market_rules
Revises: 0046_bookings
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0047_market_rules"
down_revision = "0046_bookings"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the columns."""
    op.create_table(
        "reservation_booking_gaps",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("booking_id", sa.String(length=36), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("since", UTCDateTime(), nullable=False),
        sa.Column("until", UTCDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservation_booking_gaps")),
    )
    with op.batch_alter_table("reservation_booking_gaps", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_reservation_booking_gaps_booking_id"), ["booking_id"], unique=False
        )
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("pull_began_at", UTCDateTime(), nullable=True))
        batch_op.add_column(sa.Column("pull_ended_at", UTCDateTime(), nullable=True))
    with op.batch_alter_table("contracts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("uncharged_since", UTCDateTime(), nullable=True))
    with op.batch_alter_table("reservation_bookings", schema=None) as batch_op:
        batch_op.add_column(sa.Column("charged_until", UTCDateTime(), nullable=True))
    with op.batch_alter_table("grants", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("cancellation_hours", sa.Integer(), server_default="0", nullable=False)
        )
    with op.batch_alter_table("service_scalers", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("cost_hold", sa.String(length=200), server_default="", nullable=False)
        )


def downgrade() -> None:
    """Remove them."""
    with op.batch_alter_table("service_scalers", schema=None) as batch_op:
        batch_op.drop_column("cost_hold")
    with op.batch_alter_table("grants", schema=None) as batch_op:
        batch_op.drop_column("cancellation_hours")
    with op.batch_alter_table("reservation_bookings", schema=None) as batch_op:
        batch_op.drop_column("charged_until")
    with op.batch_alter_table("contracts", schema=None) as batch_op:
        batch_op.drop_column("uncharged_since")
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_column("pull_ended_at")
        batch_op.drop_column("pull_began_at")
    op.drop_table("reservation_booking_gaps")
