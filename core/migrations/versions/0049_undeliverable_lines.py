"""Relays report the lines that the portal did not store.

Revision ID: 0049_undeliverable_lines
Revises: 0048_data_wait
"""

import sqlalchemy as sa
from alembic import op

revision = "0049_undeliverable_lines"
down_revision = "0048_data_wait"
branch_labels = None
depends_on = None

_BIG_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the column."""
    with op.batch_alter_table("access_points", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("undeliverable_bytes", _BIG_NUMBER, server_default="0", nullable=False)
        )


def downgrade() -> None:
    """Remove it."""
    with op.batch_alter_table("access_points", schema=None) as batch_op:
        batch_op.drop_column("undeliverable_bytes")
