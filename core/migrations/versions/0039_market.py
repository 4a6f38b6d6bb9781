"""What the catalogue filters by, and the record of providers.

Revision ID: 0039_market
Revises: 0038_sign_up
"""

import sqlalchemy as sa
from alembic import op

revision = "0039_market"
down_revision = "0038_sign_up"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    with op.batch_alter_table("market_accounts", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("reputation", sa.Double(), server_default="0.5", nullable=False)
        )
    with op.batch_alter_table("offered_appliances", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("availability_percent", sa.Double(), server_default="0", nullable=False)
        )
        batch_op.add_column(
            sa.Column("facts", sa.String(length=1000), server_default="", nullable=False)
        )


def downgrade() -> None:
    """Remove them."""
    with op.batch_alter_table("offered_appliances", schema=None) as batch_op:
        batch_op.drop_column("facts")
        batch_op.drop_column("availability_percent")
    with op.batch_alter_table("market_accounts", schema=None) as batch_op:
        batch_op.drop_column("reputation")
