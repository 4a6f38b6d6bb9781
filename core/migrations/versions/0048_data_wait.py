"""Jobs wait for their data without GPUs.

Revision ID: 0048_data_wait
Revises: 0047_market_rules
"""

import sqlalchemy as sa
from alembic import op

revision = "0048_data_wait"
down_revision = "0047_market_rules"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    with op.batch_alter_table("appliance_caches", schema=None) as batch_op:
        batch_op.add_column(sa.Column("bytes_per_second", sa.BigInteger(), nullable=True))
    with op.batch_alter_table("tenant_queue_settings", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("longest_fetch_minutes", sa.Integer(), server_default="5", nullable=False)
        )


def downgrade() -> None:
    """Remove them."""
    with op.batch_alter_table("tenant_queue_settings", schema=None) as batch_op:
        batch_op.drop_column("longest_fetch_minutes")
    with op.batch_alter_table("appliance_caches", schema=None) as batch_op:
        batch_op.drop_column("bytes_per_second")
