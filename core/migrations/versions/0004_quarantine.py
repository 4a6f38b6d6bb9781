"""Quarantine of appliances on which jobs fail to start.

Revision ID: 0004_quarantine
Revises: 0003_time_zones
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0004_quarantine"
down_revision = "0003_time_zones"
branch_labels = None
depends_on = None

_TIMES = ("quarantined_at", "quarantine_ended_at", "probe_at")
_LIST = "ix_appliances_list"
_BEFORE = (
    "tenant_id",
    "revoked_at",
    "retired_at",
    "name",
    "id",
    "state",
    "drained_at",
    "fenced_at",
)
_AFTER = ("health_state", "gpu_count", "gpu_model", "appliance_class", "site", "region")


def upgrade() -> None:
    """Add the columns, and the one that lists filter by to their index."""
    for name in _TIMES:
        op.add_column("appliances", sa.Column(name, UTCDateTime(), nullable=True))
    reason = sa.Column(
        "quarantine_reason", sa.String(length=500), nullable=False, server_default=""
    )
    op.add_column("appliances", reason)
    number = sa.Column("probe_number", sa.Integer(), nullable=False, server_default="0")
    op.add_column("appliances", number)
    op.drop_index(_LIST, "appliances")
    op.create_index(_LIST, "appliances", [*_BEFORE, "quarantined_at", *_AFTER])


def downgrade() -> None:
    """Remove them."""
    op.drop_index(_LIST, "appliances")
    op.create_index(_LIST, "appliances", [*_BEFORE, *_AFTER])
    for name in ("quarantine_reason", "probe_number", *_TIMES):
        op.drop_column("appliances", name)
