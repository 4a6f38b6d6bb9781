"""The bucket that has a part, by its connection.

Revision ID: 0031_part_connections
Revises: 0030_common_start
"""

import sqlalchemy as sa
from alembic import op

revision = "0031_part_connections"
down_revision = "0030_common_start"
branch_labels = None
depends_on = None

_FILL = """
    UPDATE data_parts SET connection_id = (
        SELECT results_connection_id FROM tenant_data_settings
        WHERE tenant_data_settings.tenant_id = data_parts.tenant_id
    ) WHERE is_in_bucket
"""


def upgrade() -> None:
    """Add the column: of parts in buckets, the tenant's present one."""
    with op.batch_alter_table("data_parts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("connection_id", sa.String(length=36), nullable=True))
    op.execute(_FILL)


def downgrade() -> None:
    """Remove it."""
    with op.batch_alter_table("data_parts", schema=None) as batch_op:
        batch_op.drop_column("connection_id")
