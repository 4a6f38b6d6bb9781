"""The processes of the portal, with their load.

Revision ID: 0014_server_processes
Revises: 0013_tunnels
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0014_server_processes"
down_revision = "0013_tunnels"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "server_processes",
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("url", sa.String(length=255), nullable=False),
        sa.Column("parts", sa.String(length=64), nullable=False),
        sa.Column("version", sa.String(length=40), nullable=False),
        sa.Column("started_at", UTCDateTime(), nullable=False),
        sa.Column("seen_at", UTCDateTime(), nullable=False),
        sa.Column("requests_per_second", sa.Double(), nullable=False),
        sa.Column("cpu_percent", sa.Double(), nullable=False),
        sa.Column(
            "memory_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.PrimaryKeyConstraint("holder", name=op.f("pk_server_processes")),
    )


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("server_processes")
