"""The health of appliances, as their agents judge it.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("appliances", schema=None) as batch_op:
        batch_op.add_column(sa.Column("health", sa.JSON(none_as_null=True), nullable=True))
        batch_op.add_column(sa.Column("health_state", sa.String(length=32), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("appliances", schema=None) as batch_op:
        batch_op.drop_column("health_state")
        batch_op.drop_column("health")
