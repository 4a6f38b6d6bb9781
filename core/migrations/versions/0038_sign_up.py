"""Sign-up of customers by a confirmed email address.

Revision ID: 0038_sign_up
Revises: 0037_rented_attempts
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0038_sign_up"
down_revision = "0037_rented_attempts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "sign_ups",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("email", sa.String(length=254), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("expires_at", UTCDateTime(), nullable=False),
        sa.Column("confirmed_at", UTCDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_sign_ups"),
        sa.UniqueConstraint("secret_hash", name="uq_sign_ups_secret_hash"),
    )
    with op.batch_alter_table("sign_ups", schema=None) as batch_op:
        batch_op.create_index("ix_sign_ups_created_at", ["created_at"], unique=False)


def downgrade() -> None:
    """Remove the table."""
    with op.batch_alter_table("sign_ups", schema=None) as batch_op:
        batch_op.drop_index("ix_sign_ups_created_at")

    op.drop_table("sign_ups")
