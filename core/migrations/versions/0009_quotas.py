"""Quotas of what users make: waiting jobs, rules, receivers, schedules and dashboards.

Revision ID: 0009_quotas
Revises: 0008_offered_texts
"""

import sqlalchemy as sa
from alembic import op

revision = "0009_quotas"
down_revision = "0008_offered_texts"
branch_labels = None
depends_on = None

_COLUMNS = (
    "max_waiting_jobs",
    "max_rules",
    "max_receivers",
    "max_schedules",
    "max_dashboards",
)


def upgrade() -> None:
    """Add the quotas; without one, a default applies."""
    with op.batch_alter_table("tenant_quotas") as table:
        for name in _COLUMNS:
            table.add_column(sa.Column(name, sa.Integer(), nullable=True))


def downgrade() -> None:
    """Remove the quotas."""
    with op.batch_alter_table("tenant_quotas") as table:
        for name in _COLUMNS:
            table.drop_column(name)
