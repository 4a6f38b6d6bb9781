"""Members of a gang that are prepared to start.

Revision ID: 0030_common_start
Revises: 0029_many_hosts
"""

import sqlalchemy as sa
from alembic import op

revision = "0030_common_start"
down_revision = "0029_many_hosts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("is_prepared", sa.Boolean(), server_default=sa.false(), nullable=False)
        )


def downgrade() -> None:
    """Remove it."""
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_column("is_prepared")
