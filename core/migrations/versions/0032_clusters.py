"""Nodes of clusters, and the attempts on them.

Revision ID: 0032_clusters
Revises: 0031_part_connections
"""

import sqlalchemy as sa
from alembic import op

revision = "0032_clusters"
down_revision = "0031_part_connections"
branch_labels = None
depends_on = None

_COLUMNS = {"appliances": "connector_id", "attempts": "node_id"}


def upgrade() -> None:
    """Add the columns."""
    for table, column in _COLUMNS.items():
        with op.batch_alter_table(table, schema=None) as batch_op:
            batch_op.add_column(sa.Column(column, sa.String(length=36), nullable=True))
            batch_op.create_index(f"ix_{table}_{column}", [column])
    with op.batch_alter_table("appliances", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("cluster_kind", sa.String(length=20), nullable=False, server_default="")
        )
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("is_on_cluster", sa.Boolean(), server_default=sa.false(), nullable=False)
        )


def downgrade() -> None:
    """Remove them, and the nodes: without a connector, they are appliances that send nothing."""
    nodes = "SELECT id FROM appliances WHERE connector_id IS NOT NULL"
    op.execute(f"DELETE FROM appliance_events WHERE appliance_id IN ({nodes})")  # noqa: S608 - ours
    op.execute("DELETE FROM appliances WHERE connector_id IS NOT NULL")
    with op.batch_alter_table("appliances", schema=None) as batch_op:
        batch_op.drop_column("cluster_kind")
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_column("is_on_cluster")
    for table, column in _COLUMNS.items():
        with op.batch_alter_table(table, schema=None) as batch_op:
            batch_op.drop_index(f"ix_{table}_{column}")
            batch_op.drop_column(column)
