"""What each receiver was notified of each alert.

Revision ID: 0005_delivered_alerts
Revises: 0004_quarantine
"""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime
from core.ids import new_id

revision = "0005_delivered_alerts"
down_revision = "0004_quarantine"
branch_labels = None
depends_on = None

_SENT_ABOUT_ACTIVE = sa.text(
    "SELECT n.id, n.tenant_id, n.alert_id, n.receiver_id, n.address, n.group_key, n.payload, "
    "n.sent_at FROM notifications n JOIN alerts a ON a.id = n.alert_id "
    "WHERE n.state = 'sent' AND a.state IN ('firing', 'no_data') ORDER BY n.id"
)


def upgrade() -> None:
    """Add the table, and fill it from what was sent about the alerts that are active."""
    op.add_column(
        "notifications",
        sa.Column("purpose", sa.String(length=32), nullable=False, server_default="notice"),
    )
    op.add_column(
        "notifications",
        sa.Column("group_interval_seconds", sa.Double(), nullable=False, server_default="0"),
    )
    op.execute("UPDATE notifications SET purpose = 'change' WHERE alert_id IS NOT NULL")
    table = op.create_table(
        "delivered_alerts",
        sa.Column("id", sa.String(length=36), primary_key=True),
        sa.Column(
            "tenant_id", sa.String(length=36), sa.ForeignKey("tenants.id", ondelete="CASCADE")
        ),
        sa.Column("alert_id", sa.String(length=36), nullable=False),
        sa.Column("recipient", sa.String(length=254), nullable=False),
        sa.Column(
            "receiver_id", sa.String(length=36), sa.ForeignKey("receivers.id", ondelete="CASCADE")
        ),
        sa.Column("state", sa.String(length=32), nullable=True),
        sa.Column("severity", sa.String(length=32), nullable=True),
        sa.Column("group_key", sa.String(length=64), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("delivered_at", UTCDateTime(), nullable=True),
        sa.UniqueConstraint("alert_id", "recipient"),
    )
    for columns in (("tenant_id",), ("receiver_id",), ("recipient", "group_key")):
        name = f"ix_delivered_alerts_{'_'.join(columns)}"
        op.create_index(name, "delivered_alerts", list(columns))
    rows = _delivered(op.get_bind())
    if rows:
        op.bulk_insert(table, rows)


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("delivered_alerts")
    op.drop_column("notifications", "group_interval_seconds")
    op.drop_column("notifications", "purpose")


def _delivered(connection: sa.Connection) -> list[dict[str, Any]]:
    """Return the last message about each active alert to each receiver."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    columns = _SENT_ABOUT_ACTIVE.columns(sent_at=UTCDateTime())
    for row in connection.execute(columns).mappings():
        payload = json.loads(row["payload"])
        recipient = row["receiver_id"] or row["address"]
        newest[row["alert_id"], recipient] = {
            "id": new_id(),
            "tenant_id": row["tenant_id"],
            "alert_id": row["alert_id"],
            "recipient": recipient,
            "receiver_id": row["receiver_id"],
            "state": payload["state"],
            "severity": payload["severity"],
            "group_key": row["group_key"],
            "payload": payload,
            "delivered_at": row["sent_at"],
        }
    return [row for row in newest.values() if row["state"] != "resolved"]
