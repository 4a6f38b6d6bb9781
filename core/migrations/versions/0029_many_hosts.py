"""Access points of agents, and the broker of the portal's processes.

Revision ID: 0029_many_hosts
Revises: 0028_training
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0029_many_hosts"
down_revision = "0028_training"
branch_labels = None
depends_on = None

_BIG_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the table and add the columns."""
    op.create_table(
        "access_points",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("url", sa.String(length=255), nullable=False),
        sa.Column("region", sa.String(length=100), nullable=False),
        sa.Column("weight", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=True),
        sa.Column("secret_hash", sa.String(length=64), nullable=True),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("seen_at", UTCDateTime(), nullable=True),
        sa.Column("version", sa.String(length=50), nullable=False),
        sa.Column("started_at", UTCDateTime(), nullable=True),
        sa.Column("agents", sa.Integer(), nullable=False),
        sa.Column("spool_bytes", _BIG_NUMBER, nullable=False),
        sa.Column("max_spool_bytes", _BIG_NUMBER, nullable=False),
        sa.Column("oldest_spooled_at", UTCDateTime(), nullable=True),
        sa.Column("refused_writes", _BIG_NUMBER, nullable=False),
        sa.Column("requests_per_second", sa.Double(), nullable=False),
        sa.Column("cpu_percent", sa.Double(), nullable=False),
        sa.Column("memory_bytes", _BIG_NUMBER, nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_access_points_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_access_points")),
        sa.UniqueConstraint("name", name=op.f("uq_access_points_name")),
        sa.UniqueConstraint("secret_hash", name=op.f("uq_access_points_secret_hash")),
        sa.UniqueConstraint("url", name=op.f("uq_access_points_url")),
    )
    with op.batch_alter_table("appliances", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("access_point", sa.String(length=255), server_default="", nullable=False)
        )
    with op.batch_alter_table("server_processes", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("broker", sa.String(length=16), server_default="none", nullable=False)
        )
        batch_op.add_column(sa.Column("broker_since", UTCDateTime(), nullable=True))
        batch_op.add_column(
            sa.Column("shared", sa.String(length=255), server_default="", nullable=False)
        )


def downgrade() -> None:
    """Remove them."""
    with op.batch_alter_table("server_processes", schema=None) as batch_op:
        batch_op.drop_column("broker_since")
        batch_op.drop_column("shared")
        batch_op.drop_column("broker")
    with op.batch_alter_table("appliances", schema=None) as batch_op:
        batch_op.drop_column("access_point")
    op.drop_table("access_points")
