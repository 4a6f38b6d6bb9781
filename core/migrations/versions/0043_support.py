"""Tickets of support.

Revision ID: 0043_support
Revises: 0042_consequences
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import MEDIUMBLOB

from core.db import UTCDateTime

revision = "0043_support"
down_revision = "0042_consequences"
branch_labels = None
depends_on = None

_CONTENT = sa.LargeBinary().with_variant(MEDIUMBLOB(), "mysql", "mariadb")


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "tickets",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("customer_id", sa.String(length=36), nullable=True),
        sa.Column("customer_name", sa.String(length=200), nullable=False),
        sa.Column("provider_id", sa.String(length=36), nullable=True),
        sa.Column("provider_name", sa.String(length=200), nullable=False),
        sa.Column("has_operator", sa.Boolean(), nullable=False),
        sa.Column("requester", sa.String(length=32), nullable=False),
        sa.Column("author_id", sa.String(length=36), nullable=True),
        sa.Column("author_name", sa.String(length=254), nullable=False),
        sa.Column("subject_kind", sa.String(length=32), nullable=False),
        sa.Column("subject_id", sa.String(length=36), nullable=False),
        sa.Column("subject_name", sa.String(length=254), nullable=False),
        sa.Column("contract_id", sa.String(length=36), nullable=True),
        sa.Column("title", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("limit_seconds", sa.Integer(), nullable=False),
        sa.Column("is_promised", sa.Boolean(), nullable=False),
        sa.Column("used_seconds", sa.Double(), nullable=False),
        sa.Column("clock_started_at", UTCDateTime(), nullable=True),
        sa.Column("due_at", UTCDateTime(), nullable=True),
        sa.Column("first_response_seconds", sa.Double(), nullable=True),
        sa.Column("escalated_at", UTCDateTime(), nullable=True),
        sa.Column("rating", sa.Integer(), nullable=True),
        sa.Column("rating_comment", sa.String(length=1000), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("updated_at", UTCDateTime(), nullable=False),
        sa.Column("solved_at", UTCDateTime(), nullable=True),
        sa.Column("closed_at", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_tickets_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_tickets"),
    )
    with op.batch_alter_table("tickets", schema=None) as batch_op:
        batch_op.create_index(
            "ix_tickets_customer_id_state", ["customer_id", "state"], unique=False
        )
        batch_op.create_index("ix_tickets_due_at", ["due_at"], unique=False)
        batch_op.create_index(
            "ix_tickets_has_operator_state", ["has_operator", "state"], unique=False
        )
        batch_op.create_index(
            "ix_tickets_provider_id_state", ["provider_id", "state"], unique=False
        )
        batch_op.create_index("ix_tickets_state_updated_at", ["state", "updated_at"], unique=False)
        batch_op.create_index("ix_tickets_subject_id", ["subject_id"], unique=False)
        batch_op.create_index("ix_tickets_tenant_id", ["tenant_id"], unique=False)

    op.create_table(
        "ticket_assignees",
        sa.Column("ticket_id", sa.String(length=36), nullable=False),
        sa.Column("party", sa.String(length=32), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=254), nullable=False),
        sa.ForeignKeyConstraint(
            ["ticket_id"], ["tickets.id"], name="fk_ticket_assignees_ticket_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_ticket_assignees_user_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("ticket_id", "party", name="pk_ticket_assignees"),
    )
    with op.batch_alter_table("ticket_assignees", schema=None) as batch_op:
        batch_op.create_index("ix_ticket_assignees_user_id", ["user_id"], unique=False)

    op.create_table(
        "ticket_entries",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("ticket_id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("party", sa.String(length=32), nullable=True),
        sa.Column("author_id", sa.String(length=36), nullable=True),
        sa.Column("author_name", sa.String(length=254), nullable=False),
        sa.Column("via", sa.String(length=20), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("email_hash", sa.String(length=64), nullable=True),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["ticket_id"], ["tickets.id"], name="fk_ticket_entries_ticket_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_ticket_entries"),
        sa.UniqueConstraint("email_hash", name="uq_ticket_entries_email_hash"),
    )
    with op.batch_alter_table("ticket_entries", schema=None) as batch_op:
        batch_op.create_index(
            "ix_ticket_entries_author_id_created_at", ["author_id", "created_at"], unique=False
        )
        batch_op.create_index("ix_ticket_entries_ticket_id", ["ticket_id"], unique=False)

    op.create_table(
        "ticket_watchers",
        sa.Column("ticket_id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("party", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(
            ["ticket_id"], ["tickets.id"], name="fk_ticket_watchers_ticket_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_ticket_watchers_user_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("ticket_id", "user_id", "party", name="pk_ticket_watchers"),
    )
    op.create_table(
        "ticket_attachments",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("ticket_id", sa.String(length=36), nullable=False),
        sa.Column("entry_id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("media_type", sa.String(length=100), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("content", _CONTENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["entry_id"],
            ["ticket_entries.id"],
            name="fk_ticket_attachments_entry_id",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name="fk_ticket_attachments_tenant_id",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["ticket_id"],
            ["tickets.id"],
            name="fk_ticket_attachments_ticket_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_ticket_attachments"),
    )
    with op.batch_alter_table("ticket_attachments", schema=None) as batch_op:
        batch_op.create_index("ix_ticket_attachments_entry_id", ["entry_id"], unique=False)
        batch_op.create_index("ix_ticket_attachments_tenant_id", ["tenant_id"], unique=False)
        batch_op.create_index("ix_ticket_attachments_ticket_id", ["ticket_id"], unique=False)


def downgrade() -> None:
    """Remove them."""
    for name in (
        "ticket_attachments",
        "ticket_entries",
        "ticket_watchers",
        "ticket_assignees",
        "tickets",
    ):
        op.drop_table(name)
