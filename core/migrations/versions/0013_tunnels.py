"""Which process of the portal holds, or wants, the tunnel of an appliance.

Revision ID: 0013_tunnels
Revises: 0012_job_options
"""

import sqlalchemy as sa
from alembic import op

revision = "0013_tunnels"
down_revision = "0012_job_options"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "tunnels",
        sa.Column("appliance_id", sa.String(length=36), nullable=False),
        sa.Column("holder_url", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(
            ["appliance_id"],
            ["appliances.id"],
            name=op.f("fk_tunnels_appliance_id_appliances"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("appliance_id", name=op.f("pk_tunnels")),
    )


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("tunnels")
