"""Price lists, what of the usage ledger is charged, and invoices.

Revision ID: 0034_billing
Revises: 0033_rentals
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0034_billing"
down_revision = "0033_rentals"
branch_labels = None
depends_on = None

_TABLES = (
    "billing_closed_lines",
    "billing_closings",
    "billing_counters",
    "billing_documents",
    "billing_months",
    "charged_hours",
    "prepaid_entries",
    "price_lists",
)


def upgrade() -> None:
    """Add the tables."""
    with op.batch_alter_table("usage_hours", schema=None) as batch_op:
        batch_op.add_column(sa.Column("appends", sa.Integer(), server_default="0", nullable=False))
    op.create_table(
        "price_lists",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=True),
        sa.Column("owner", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("valid_from", UTCDateTime(), nullable=False),
        sa.Column("valid_until", UTCDateTime(), nullable=True),
        sa.Column("prices", sa.JSON(), nullable=False),
        sa.Column("note", sa.String(length=200), nullable=False),
        sa.Column("charged_at", UTCDateTime(), nullable=True),
        sa.Column("created_by", sa.String(length=254), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_price_lists_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_price_lists"),
        sa.UniqueConstraint("owner", "number", name="uq_price_lists_owner_number"),
        sa.UniqueConstraint("owner", "valid_from", name="uq_price_lists_owner_valid_from"),
    )
    op.create_index("ix_price_lists_charged_at", "price_lists", ["charged_at"])
    op.create_index("ix_price_lists_tenant_id", "price_lists", ["tenant_id"])
    op.create_table(
        "charged_hours",
        sa.Column("hour_at", UTCDateTime(), nullable=False),
        sa.Column("appends", sa.Integer(), nullable=False),
        sa.Column("charged_at", UTCDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("hour_at", name="pk_charged_hours"),
    )
    op.create_table(
        "prepaid_entries",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("source_id", sa.String(length=100), nullable=False),
        sa.Column("note", sa.String(length=500), nullable=False),
        sa.Column("created_by", sa.String(length=254), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_prepaid_entries"),
        sa.UniqueConstraint("source_id", name="uq_prepaid_entries_source_id"),
    )
    op.create_index("ix_prepaid_entries_tenant_id", "prepaid_entries", ["tenant_id"])
    op.create_table(
        "billing_months",
        sa.Column("month_at", UTCDateTime(), nullable=False),
        sa.Column("sealed_at", UTCDateTime(), nullable=True),
        sa.Column("closed_at", UTCDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("month_at", name="pk_billing_months"),
    )
    op.create_table(
        "billing_closings",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("month_at", UTCDateTime(), nullable=False),
        sa.Column("scope_key", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("provider_id", sa.String(length=36), nullable=True),
        sa.Column("contract_id", sa.String(length=36), nullable=True),
        sa.Column("items", sa.JSON(), nullable=False),
        sa.Column("sealed_at", UTCDateTime(), nullable=True),
        sa.Column("document_id", sa.String(length=36), nullable=True),
        sa.Column("statement_id", sa.String(length=36), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_billing_closings"),
        sa.UniqueConstraint("month_at", "scope_key", name="uq_billing_closings_month_at_scope_key"),
    )
    for column in ("tenant_id", "provider_id", "document_id", "statement_id"):
        op.create_index(f"ix_billing_closings_{column}", "billing_closings", [column])
    op.create_table(
        "billing_closed_lines",
        sa.Column("line_id", sa.String(length=36), nullable=False),
        sa.Column("closing_id", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(
            ["closing_id"],
            ["billing_closings.id"],
            name="fk_billing_closed_lines_closing_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("line_id", name="pk_billing_closed_lines"),
    )
    op.create_index("ix_billing_closed_lines_closing_id", "billing_closed_lines", ["closing_id"])
    op.create_table(
        "billing_counters",
        sa.Column("series", sa.String(length=40), nullable=False),
        sa.Column("last_number", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("series", name="pk_billing_counters"),
    )
    op.create_table(
        "billing_documents",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("month_at", UTCDateTime(), nullable=False),
        sa.Column("number", sa.String(length=40), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("issued_at", UTCDateTime(), nullable=False),
        sa.Column("issuer", sa.String(length=500), nullable=False),
        sa.Column("tenant_name", sa.String(length=200), nullable=False),
        sa.Column("party", sa.JSON(), nullable=False),
        sa.Column("items", sa.JSON(), nullable=False),
        sa.Column("net", sa.BigInteger(), nullable=False),
        sa.Column("tax_percent", sa.BigInteger(), nullable=False),
        sa.Column("tax", sa.BigInteger(), nullable=False),
        sa.Column("fee_percent", sa.BigInteger(), nullable=False),
        sa.Column("fee", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("prepaid", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_billing_documents"),
        sa.UniqueConstraint(
            "kind", "tenant_id", "month_at", name="uq_billing_documents_kind_tenant_id_month_at"
        ),
        sa.UniqueConstraint("tenant_id", "number", name="uq_billing_documents_tenant_id_number"),
    )
    for column in ("tenant_id", "issued_at"):
        op.create_index(f"ix_billing_documents_{column}", "billing_documents", [column])


def downgrade() -> None:
    """Remove them: what was issued is lost."""
    for table in _TABLES:
        op.drop_table(table)
    with op.batch_alter_table("usage_hours", schema=None) as batch_op:
        batch_op.drop_column("appends")
