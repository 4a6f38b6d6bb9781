"""Whose appliance a rented attempt runs on, and when contracts end.

Revision ID: 0037_rented_attempts
Revises: 0036_service_levels
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0037_rented_attempts"
down_revision = "0036_service_levels"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the provider of attempts, by which it finds what runs on its appliances."""
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("provider_id", sa.String(length=36), nullable=True))
        batch_op.create_index("ix_attempts_provider_id_state", ["provider_id", "state"])
    with op.batch_alter_table("grants", schema=None) as batch_op:
        batch_op.add_column(sa.Column("ends_at", UTCDateTime(), nullable=True))


def downgrade() -> None:
    """Remove them."""
    with op.batch_alter_table("grants", schema=None) as batch_op:
        batch_op.drop_column("ends_at")
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_index("ix_attempts_provider_id_state")
        batch_op.drop_column("provider_id")
