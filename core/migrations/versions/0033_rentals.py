"""Appliances that tenants rent from each other.

Revision ID: 0033_rentals
Revises: 0032_clusters
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0033_rentals"
down_revision = "0032_clusters"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables, and by which contract attempts run."""
    op.create_table(
        "billing_lines",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("provider_id", sa.String(length=36), nullable=True),
        sa.Column("contract_id", sa.String(length=36), nullable=True),
        sa.Column("version_number", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("usage_entry_id", sa.String(length=36), nullable=True),
        sa.Column("source_id", sa.String(length=100), nullable=True),
        sa.Column("at", UTCDateTime(), nullable=False),
        sa.Column("recorded_at", UTCDateTime(), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=True),
        sa.Column("project_id", sa.String(length=36), nullable=True),
        sa.Column("job_id", sa.String(length=36), nullable=True),
        sa.Column("job_name", sa.String(length=100), nullable=False),
        sa.Column("attempt_id", sa.String(length=36), nullable=True),
        sa.Column("appliance_id", sa.String(length=36), nullable=True),
        sa.Column("gpu_model", sa.String(length=200), nullable=False),
        sa.Column("gpu_milliseconds", sa.BigInteger(), nullable=False),
        sa.Column("unit_price", sa.BigInteger(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("note", sa.String(length=500), nullable=False),
        sa.Column("created_by", sa.String(length=254), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_billing_lines"),
        sa.UniqueConstraint("source_id", name="uq_billing_lines_source_id"),
        sa.UniqueConstraint("usage_entry_id", name="uq_billing_lines_usage_entry_id"),
    )
    with op.batch_alter_table("billing_lines", schema=None) as batch_op:
        batch_op.create_index("ix_billing_lines_attempt_id", ["attempt_id"], unique=False)
        batch_op.create_index("ix_billing_lines_contract_id_at", ["contract_id", "at"])
        batch_op.create_index("ix_billing_lines_job_id", ["job_id"], unique=False)
        batch_op.create_index("ix_billing_lines_provider_id_at", ["provider_id", "at"])
        batch_op.create_index("ix_billing_lines_tenant_id_at", ["tenant_id", "at"])
    op.create_table(
        "contracts",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("offer_id", sa.String(length=36), nullable=False),
        sa.Column("offer_name", sa.String(length=100), nullable=False),
        sa.Column("provider_id", sa.String(length=36), nullable=False),
        sa.Column("provider_name", sa.String(length=200), nullable=False),
        sa.Column("customer_id", sa.String(length=36), nullable=False),
        sa.Column("customer_name", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("starts_at", UTCDateTime(), nullable=True),
        sa.Column("ends_at", UTCDateTime(), nullable=True),
        sa.Column("noticed_at", UTCDateTime(), nullable=True),
        sa.Column("noticed_by", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_contracts"),
    )
    with op.batch_alter_table("contracts", schema=None) as batch_op:
        batch_op.create_index("ix_contracts_customer_id", ["customer_id"], unique=False)
        batch_op.create_index("ix_contracts_offer_id", ["offer_id"], unique=False)
        batch_op.create_index("ix_contracts_provider_id", ["provider_id"], unique=False)
        batch_op.create_index("ix_contracts_state", ["state"], unique=False)

    op.create_table(
        "contract_versions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("contract_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("terms", sa.JSON(), nullable=False),
        sa.Column("terms_hash", sa.String(length=64), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("proposed_side", sa.String(length=32), nullable=False),
        sa.Column("proposed_by", sa.String(length=254), nullable=False),
        sa.Column("proposed_at", UTCDateTime(), nullable=False),
        sa.Column("accepted_by", sa.String(length=254), nullable=False),
        sa.Column("accepted_at", UTCDateTime(), nullable=True),
        sa.Column("applies_from", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["contract_id"],
            ["contracts.id"],
            name="fk_contract_versions_contract_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_contract_versions"),
        sa.UniqueConstraint(
            "contract_id", "number", name="uq_contract_versions_contract_id_number"
        ),
    )
    op.create_table(
        "grants",
        sa.Column("contract_id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("provider_id", sa.String(length=36), nullable=False),
        sa.Column("offer_id", sa.String(length=36), nullable=False),
        sa.Column("offer_name", sa.String(length=100), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("price", sa.BigInteger(), nullable=False),
        sa.Column("allows_slices", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("region", sa.String(length=100), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("availability_percent", sa.Double(), nullable=False),
        sa.Column("max_gpus", sa.Integer(), nullable=False),
        sa.Column("min_seconds", sa.Integer(), nullable=False),
        sa.Column("max_seconds", sa.Integer(), nullable=False),
        sa.Column("reputation", sa.Double(), nullable=False),
        sa.Column("refreshed_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["provider_id"], ["tenants.id"], name="fk_grants_provider_id", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_grants_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("contract_id", name="pk_grants"),
    )
    with op.batch_alter_table("grants", schema=None) as batch_op:
        batch_op.create_index("ix_grants_offer_id", ["offer_id"], unique=False)
        batch_op.create_index("ix_grants_provider_id", ["provider_id"], unique=False)
        batch_op.create_index("ix_grants_tenant_id", ["tenant_id"], unique=False)

    op.create_table(
        "market_accounts",
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("public_name", sa.String(length=200), nullable=False),
        sa.Column("description", sa.String(length=2000), nullable=False),
        sa.Column("provider_state", sa.String(length=32), nullable=False),
        sa.Column("customer_state", sa.String(length=32), nullable=False),
        sa.Column("legal_name", sa.String(length=200), nullable=False),
        sa.Column("address", sa.String(length=500), nullable=False),
        sa.Column("country", sa.String(length=2), nullable=False),
        sa.Column("tax_number", sa.String(length=50), nullable=False),
        sa.Column("billing_email", sa.String(length=254), nullable=False),
        sa.Column("tax_percent", sa.BigInteger(), nullable=True),
        sa.Column("fee_percent", sa.BigInteger(), nullable=True),
        sa.Column("is_prepaid", sa.Boolean(), nullable=False),
        sa.Column("updated_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name="fk_market_accounts_tenant_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_market_accounts"),
    )
    op.create_table(
        "offers",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("description", sa.String(length=2000), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("appliance_ids", sa.JSON(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("calendar", sa.JSON(), nullable=False),
        sa.Column("needs_approval", sa.Boolean(), nullable=False),
        sa.Column("terms", sa.JSON(), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("updated_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_offers_tenant_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_offers"),
        sa.UniqueConstraint("tenant_id", "name", name="uq_offers_tenant_id_name"),
    )
    with op.batch_alter_table("offers", schema=None) as batch_op:
        batch_op.create_index("ix_offers_tenant_id", ["tenant_id"], unique=False)

    op.create_table(
        "offered_appliances",
        sa.Column("appliance_id", sa.String(length=36), nullable=False),
        sa.Column("provider_id", sa.String(length=36), nullable=False),
        sa.Column("offer_id", sa.String(length=36), nullable=False),
        sa.Column("is_open", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("region", sa.String(length=100), nullable=False),
        sa.Column("gpu_model", sa.String(length=200), nullable=False),
        sa.Column("gpu_memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("gpu_count", sa.Integer(), nullable=False),
        sa.Column("free_gpus", sa.Integer(), nullable=False),
        sa.Column("free_gpu_milli", sa.Integer(), nullable=False),
        sa.Column("allows_slices", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("price", sa.BigInteger(), nullable=False),
        sa.Column("refreshed_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["appliance_id"],
            ["appliances.id"],
            name="fk_offered_appliances_appliance_id",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["provider_id"],
            ["tenants.id"],
            name="fk_offered_appliances_provider_id",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("appliance_id", name="pk_offered_appliances"),
    )
    with op.batch_alter_table("offered_appliances", schema=None) as batch_op:
        batch_op.create_index(
            "ix_offered_appliances_catalogue",
            ["is_open", "gpu_model", "region", "offer_id"],
            unique=False,
        )
        batch_op.create_index("ix_offered_appliances_offer_id", ["offer_id"], unique=False)
        batch_op.create_index("ix_offered_appliances_provider_id", ["provider_id"], unique=False)

    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("contract_id", sa.String(length=36), nullable=True))
        batch_op.create_index("ix_attempts_contract_id", ["contract_id"], unique=False)

    with op.batch_alter_table("usage_entries", schema=None) as batch_op:
        batch_op.add_column(sa.Column("contract_id", sa.String(length=36), nullable=True))
        batch_op.create_index("ix_usage_entries_contract_id", ["contract_id"], unique=False)


def downgrade() -> None:
    """Remove them."""
    with op.batch_alter_table("usage_entries", schema=None) as batch_op:
        batch_op.drop_index("ix_usage_entries_contract_id")
        batch_op.drop_column("contract_id")

    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_index("ix_attempts_contract_id")
        batch_op.drop_column("contract_id")

    # With their indexes, which MySQL needs for foreign keys until then.
    op.drop_table("offered_appliances")
    op.drop_table("offers")
    op.drop_table("market_accounts")
    op.drop_table("grants")
    op.drop_table("contract_versions")
    op.drop_table("contracts")
    op.drop_table("billing_lines")
