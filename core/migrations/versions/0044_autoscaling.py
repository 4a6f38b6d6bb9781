"""Services that scale by themselves.

Revision ID: 0044_autoscaling
Revises: 0043_support
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0044_autoscaling"
down_revision = "0043_support"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column and the tables."""
    op.add_column("jobs", sa.Column("autoscaling", sa.JSON(), nullable=True))
    op.create_table(
        "service_scalers",
        sa.Column("service_id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("memory", sa.JSON(), nullable=False),
        sa.Column("traffic", sa.JSON(), nullable=False),
        sa.Column("evaluate_at", UTCDateTime(), nullable=False),
        sa.Column("wanted", sa.Integer(), nullable=True),
        sa.Column("load", sa.Double(), nullable=True),
        sa.Column("why", sa.String(length=500), nullable=False),
        sa.Column("is_refused", sa.Boolean(), nullable=False),
        sa.Column("decided_at", UTCDateTime(), nullable=True),
        sa.Column("woken_at", UTCDateTime(), nullable=True),
        sa.Column("wake_seconds", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["service_id"], ["jobs.id"], name="fk_service_scalers_service_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_service_scalers_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("service_id", name="pk_service_scalers"),
    )
    op.create_index("ix_service_scalers_evaluate_at", "service_scalers", ["evaluate_at"])
    op.create_index("ix_service_scalers_tenant_id", "service_scalers", ["tenant_id"])
    op.create_table(
        "service_traffic",
        sa.Column("service_id", sa.String(length=36), nullable=False),
        sa.Column("process_id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("busy_seconds", sa.Double(), nullable=False),
        sa.Column("updated_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["service_id"], ["jobs.id"], name="fk_service_traffic_service_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_service_traffic_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("service_id", "process_id", name="pk_service_traffic"),
    )
    op.create_index("ix_service_traffic_tenant_id", "service_traffic", ["tenant_id"])


def downgrade() -> None:
    """Remove them."""
    op.drop_table("service_traffic")
    op.drop_table("service_scalers")
    op.drop_column("jobs", "autoscaling")
