"""Gangs: jobs whose members start together.

Revision ID: 0024_gangs
Revises: 0023_fair_share
"""

import sqlalchemy as sa
from alembic import op

revision = "0024_gangs"
down_revision = "0023_fair_share"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the number of members, and what happens when one is lost."""
    op.add_column("jobs", sa.Column("nodes", sa.Integer(), nullable=False, server_default="1"))
    loss = sa.Column("on_member_loss", sa.String(16), nullable=False, server_default="stop")
    op.add_column("jobs", loss)


def downgrade() -> None:
    """Remove the columns."""
    op.drop_column("jobs", "on_member_loss")
    op.drop_column("jobs", "nodes")
