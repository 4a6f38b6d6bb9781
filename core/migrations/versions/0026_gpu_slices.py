"""Slices of GPUs: what jobs request and get, and the policies of tenants.

Revision ID: 0026_gpu_slices
Revises: 0025_reservations
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0026_gpu_slices"
down_revision = "0025_reservations"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and the table."""
    op.add_column("jobs", sa.Column("gpu_slice", sa.String(32), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("gpu_compute", sa.Double(), nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("gpu_slice", sa.JSON(), nullable=True))
    for name in ("isolation_between_users", "isolation_between_projects"):
        op.add_column("tenant_queue_settings", sa.Column(name, sa.String(32), nullable=True))
    op.create_table(
        "gpu_partition_policies",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("gpu_model", sa.String(length=100), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("mode", sa.String(length=32), nullable=False),
        sa.Column("layout", sa.JSON(), nullable=False),
        sa.Column("may_change_layout", sa.Boolean(), nullable=False),
        sa.Column("shares", sa.Integer(), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_gpu_partition_policies_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gpu_partition_policies")),
        sa.UniqueConstraint(
            "tenant_id", "name", name=op.f("uq_gpu_partition_policies_tenant_id_name")
        ),
    )


def downgrade() -> None:
    """Remove them."""
    op.drop_table("gpu_partition_policies")
    for name in ("isolation_between_projects", "isolation_between_users"):
        op.drop_column("tenant_queue_settings", name)
    op.drop_column("attempts", "gpu_slice")
    op.drop_column("jobs", "gpu_compute")
    op.drop_column("jobs", "gpu_slice")
