"""Sign-in, tokens, certificates, quotas, events of appliances, and the audit log.

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from core.db import UTCDateTime

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("chain", sa.String(length=36), nullable=False),
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", UTCDateTime(), nullable=False),
        sa.Column("actor_id", sa.String(length=36), nullable=True),
        sa.Column("actor_name", sa.String(length=254), nullable=False),
        sa.Column("via", sa.String(length=100), nullable=False),
        sa.Column("action", sa.String(length=100), nullable=False),
        sa.Column("target_kind", sa.String(length=50), nullable=False),
        sa.Column("target_id", sa.String(length=36), nullable=True),
        sa.Column("target_name", sa.String(length=254), nullable=False),
        sa.Column("before", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("after", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("user_agent", sa.String(length=300), nullable=False),
        sa.Column("previous_hash", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entries")),
        sa.UniqueConstraint("chain", "number", name=op.f("uq_audit_entries_chain_number")),
    )
    with op.batch_alter_table("audit_entries", schema=None) as batch_op:
        batch_op.create_index("ix_audit_entries_at", ["at"], unique=False)
        batch_op.create_index(
            "ix_audit_entries_chain_action_number", ["chain", "action", "number"], unique=False
        )
        batch_op.create_index(
            "ix_audit_entries_chain_actor_name_number",
            ["chain", "actor_name", "number"],
            unique=False,
        )
        batch_op.create_index("ix_audit_entries_chain_at", ["chain", "at"], unique=False)
        batch_op.create_index(
            "ix_audit_entries_chain_target_id_number",
            ["chain", "target_id", "number"],
            unique=False,
        )
    op.create_table(
        "audit_heads",
        sa.Column("chain", sa.String(length=36), nullable=False),
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("chain", name=op.f("pk_audit_heads")),
    )
    op.create_table(
        "certificate_authorities",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("certificate", sa.Text(), nullable=False),
        sa.Column("private_key", sa.Text(), nullable=False),
        sa.Column("not_before", UTCDateTime(), nullable=False),
        sa.Column("not_after", UTCDateTime(), nullable=False),
        sa.Column("retired_at", UTCDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_certificate_authorities")),
    )
    op.create_table(
        "roll_revisions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_roll_revisions")),
    )
    op.create_table(
        "throttles",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.String(length=64), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("first_failed_at", UTCDateTime(), nullable=False),
        sa.Column("locked_until", UTCDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_throttles")),
        sa.UniqueConstraint("kind", "subject", name=op.f("uq_throttles_kind_subject")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column(
            "answer", sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb"), nullable=True
        ),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_idempotency_keys_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_idempotency_keys")),
        sa.UniqueConstraint("user_id", "key", name=op.f("uq_idempotency_keys_user_id_key")),
    )
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_idempotency_keys_user_id"), ["user_id"], unique=False)
    op.create_table(
        "invitations",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=True),
        sa.Column("email", sa.String(length=254), nullable=False),
        sa.Column("role", sa.String(length=32), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("invited_by", sa.String(length=36), nullable=True),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("expires_at", UTCDateTime(), nullable=False),
        sa.Column("accepted_at", UTCDateTime(), nullable=True),
        sa.Column("revoked_at", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["invited_by"],
            ["users.id"],
            name=op.f("fk_invitations_invited_by"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_invitations_tenant_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_invitations")),
        sa.UniqueConstraint("secret_hash", name=op.f("uq_invitations_secret_hash")),
    )
    with op.batch_alter_table("invitations", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_invitations_tenant_id"), ["tenant_id"], unique=False)
    op.create_table(
        "oidc_identities",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("issuer", sa.String(length=255), nullable=False),
        sa.Column(
            "subject",
            sa.String(length=255).with_variant(
                mysql.VARCHAR(length=255, charset="utf8mb4", collation="utf8mb4_bin"),
                "mysql",
                "mariadb",
            ),
            nullable=False,
        ),
        sa.Column("granted", sa.JSON(), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("last_used_at", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_oidc_identities_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_oidc_identities")),
        sa.UniqueConstraint("issuer", "subject", name=op.f("uq_oidc_identities_issuer_subject")),
    )
    with op.batch_alter_table("oidc_identities", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_oidc_identities_user_id"), ["user_id"], unique=False)
    op.create_table(
        "password_resets",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("expires_at", UTCDateTime(), nullable=False),
        sa.Column("used_at", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_password_resets_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_password_resets")),
        sa.UniqueConstraint("secret_hash", name=op.f("uq_password_resets_secret_hash")),
    )
    with op.batch_alter_table("password_resets", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_password_resets_user_id"), ["user_id"], unique=False)
    op.create_table(
        "recovery_codes",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("code_hash", sa.String(length=64), nullable=False),
        sa.Column("used_at", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_recovery_codes_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_recovery_codes")),
    )
    with op.batch_alter_table("recovery_codes", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_recovery_codes_user_id"), ["user_id"], unique=False)
    op.create_table(
        "support_visits",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("operator_id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("as_user_id", sa.String(length=36), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.Column("started_at", UTCDateTime(), nullable=False),
        sa.Column("expires_at", UTCDateTime(), nullable=False),
        sa.Column("ended_at", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["as_user_id"],
            ["users.id"],
            name=op.f("fk_support_visits_as_user_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["operator_id"],
            ["users.id"],
            name=op.f("fk_support_visits_operator_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_support_visits_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_support_visits")),
    )
    with op.batch_alter_table("support_visits", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_support_visits_as_user_id"), ["as_user_id"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_support_visits_operator_id"), ["operator_id"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_support_visits_tenant_id"), ["tenant_id"], unique=False
        )
    op.create_table(
        "tenant_quotas",
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("max_appliances", sa.Integer(), nullable=True),
        sa.Column("max_gpus", sa.Integer(), nullable=True),
        sa.Column("max_active_jobs", sa.Integer(), nullable=True),
        sa.Column("max_series", sa.Integer(), nullable=True),
        sa.Column(
            "max_storage_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_tenant_quotas_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_tenant_quotas")),
    )
    op.create_table(
        "tenant_removals",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("tenant_slug", sa.String(length=64), nullable=False),
        sa.Column("tenant_name", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("requested_by", sa.String(length=254), nullable=False),
        sa.Column("requested_at", UTCDateTime(), nullable=False),
        sa.Column("exported_at", UTCDateTime(), nullable=True),
        sa.Column("finished_at", UTCDateTime(), nullable=True),
        sa.Column(
            "file_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.Column("discarded_at", UTCDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenant_removals")),
        sa.UniqueConstraint("tenant_id", name=op.f("uq_tenant_removals_tenant_id")),
    )
    op.create_table(
        "tenant_usage",
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("measured_at", UTCDateTime(), nullable=False),
        sa.Column("appliances", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("points", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column(
            "storage_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_tenant_usage_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", "day", name=op.f("pk_tenant_usage")),
    )
    with op.batch_alter_table("tenant_usage", schema=None) as batch_op:
        batch_op.create_index("ix_tenant_usage_day", ["day"], unique=False)
    op.create_table(
        "appliance_certificates",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("appliance_id", sa.String(length=36), nullable=False),
        sa.Column("authority_id", sa.String(length=36), nullable=False),
        sa.Column("serial", sa.String(length=40), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("not_before", UTCDateTime(), nullable=False),
        sa.Column("not_after", UTCDateTime(), nullable=False),
        sa.Column("issued_at", UTCDateTime(), nullable=False),
        sa.Column("first_used_at", UTCDateTime(), nullable=True),
        sa.Column("replaced_at", UTCDateTime(), nullable=True),
        sa.Column("revoked_at", UTCDateTime(), nullable=True),
        sa.Column("revocation_reason", sa.String(length=500), nullable=False),
        sa.ForeignKeyConstraint(
            ["appliance_id"],
            ["appliances.id"],
            name=op.f("fk_appliance_certificates_appliance_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["authority_id"],
            ["certificate_authorities.id"],
            name=op.f("fk_appliance_certificates_authority_id"),
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_appliance_certificates_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_appliance_certificates")),
        sa.UniqueConstraint("fingerprint", name=op.f("uq_appliance_certificates_fingerprint")),
        sa.UniqueConstraint("serial", name=op.f("uq_appliance_certificates_serial")),
    )
    with op.batch_alter_table("appliance_certificates", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_appliance_certificates_appliance_id"), ["appliance_id"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_appliance_certificates_not_after"), ["not_after"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_appliance_certificates_tenant_id"), ["tenant_id"], unique=False
        )
    op.create_table(
        "appliance_events",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("appliance_id", sa.String(length=36), nullable=False),
        sa.Column("at", UTCDateTime(), nullable=False),
        sa.Column("kind", sa.String(length=50), nullable=False),
        sa.Column("message", sa.String(length=500), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["appliance_id"],
            ["appliances.id"],
            name=op.f("fk_appliance_events_appliance_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_appliance_events_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_appliance_events")),
    )
    with op.batch_alter_table("appliance_events", schema=None) as batch_op:
        batch_op.create_index(
            "ix_appliance_events_appliance_id_at", ["appliance_id", "at"], unique=False
        )
        batch_op.create_index("ix_appliance_events_at", ["at"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_appliance_events_tenant_id"), ["tenant_id"], unique=False
        )
    with op.batch_alter_table("api_tokens", schema=None) as batch_op:
        batch_op.add_column(sa.Column("tenant_id", sa.String(length=36), nullable=True))
        batch_op.add_column(sa.Column("scopes", sa.JSON(), nullable=True))
        batch_op.add_column(sa.Column("expires_at", UTCDateTime(), nullable=True))
        batch_op.add_column(sa.Column("last_used_at", UTCDateTime(), nullable=True))
        batch_op.add_column(
            sa.Column("last_used_address", sa.String(length=64), nullable=False, server_default="")
        )
        batch_op.create_index(batch_op.f("ix_api_tokens_tenant_id"), ["tenant_id"], unique=False)
        batch_op.create_foreign_key(
            batch_op.f("fk_api_tokens_tenant_id"),
            "tenants",
            ["tenant_id"],
            ["id"],
            ondelete="CASCADE",
        )
    op.create_table(
        "fleet_outages",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("began_at", UTCDateTime(), nullable=False),
        sa.Column("ended_at", UTCDateTime(), nullable=True),
        sa.Column("silent_count", sa.Integer(), nullable=False),
        sa.Column("fleet_count", sa.Integer(), nullable=False),
        sa.Column("told_at", UTCDateTime(), nullable=True),
        sa.Column("released_at", UTCDateTime(), nullable=True),
        sa.Column("released_by", sa.String(length=36), nullable=True),
        sa.ForeignKeyConstraint(
            ["released_by"],
            ["users.id"],
            name=op.f("fk_fleet_outages_released_by"),
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fleet_outages")),
    )
    with op.batch_alter_table("appliances", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("gpu_count", sa.Integer(), nullable=False, server_default="0")
        )
        batch_op.add_column(
            sa.Column("gpu_model", sa.String(length=200), nullable=False, server_default="")
        )
        batch_op.add_column(
            sa.Column("appliance_class", sa.String(length=100), nullable=False, server_default="")
        )
        batch_op.add_column(sa.Column("retired_at", UTCDateTime(), nullable=True))
        batch_op.add_column(sa.Column("fenced_at", UTCDateTime(), nullable=True))
        batch_op.add_column(sa.Column("instance_id", sa.String(length=36), nullable=True))
        batch_op.add_column(sa.Column("past_instances", sa.JSON(none_as_null=True), nullable=True))
        batch_op.create_index(
            "ix_appliances_list",
            [
                "tenant_id",
                "revoked_at",
                "retired_at",
                "name",
                "id",
                "state",
                "drained_at",
                "fenced_at",
                "health_state",
                "gpu_count",
                "gpu_model",
                "appliance_class",
                "site",
                "region",
            ],
            unique=False,
        )
        batch_op.create_index(
            "ix_appliances_choices",
            [
                "tenant_id",
                "revoked_at",
                "retired_at",
                "appliance_class",
                "site",
                "region",
                "gpu_model",
            ],
            unique=False,
        )
    with op.batch_alter_table("enrolment_tokens", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("name", sa.String(length=100), nullable=False, server_default="")
        )
        batch_op.add_column(sa.Column("uses", sa.Integer(), nullable=False, server_default="1"))
        batch_op.add_column(sa.Column("created_by", sa.String(length=36), nullable=True))
        batch_op.add_column(sa.Column("revoked_at", UTCDateTime(), nullable=True))
        batch_op.add_column(sa.Column("appliance_id", sa.String(length=36), nullable=True))
        batch_op.create_foreign_key(
            batch_op.f("fk_enrolment_tokens_appliance_id"),
            "appliances",
            ["appliance_id"],
            ["id"],
            ondelete="CASCADE",
        )
        batch_op.create_foreign_key(
            batch_op.f("fk_enrolment_tokens_created_by"),
            "users",
            ["created_by"],
            ["id"],
            ondelete="SET NULL",
        )
    with op.batch_alter_table("login_sessions", schema=None) as batch_op:
        batch_op.add_column(sa.Column("tenant_id", sa.String(length=36), nullable=True))
        batch_op.add_column(sa.Column("support_visit_id", sa.String(length=36), nullable=True))
        batch_op.add_column(
            sa.Column("address", sa.String(length=64), nullable=False, server_default="")
        )
        batch_op.add_column(
            sa.Column("user_agent", sa.String(length=300), nullable=False, server_default="")
        )
        batch_op.add_column(sa.Column("last_seen_at", UTCDateTime(), nullable=True))
        batch_op.create_index(
            batch_op.f("ix_login_sessions_support_visit_id"), ["support_visit_id"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_login_sessions_tenant_id"), ["tenant_id"], unique=False
        )
        batch_op.create_foreign_key(
            batch_op.f("fk_login_sessions_tenant_id"),
            "tenants",
            ["tenant_id"],
            ["id"],
            ondelete="CASCADE",
        )
        batch_op.create_foreign_key(
            batch_op.f("fk_login_sessions_support_visit_id"),
            "support_visits",
            ["support_visit_id"],
            ["id"],
            ondelete="SET NULL",
        )
    with op.batch_alter_table("tenants", schema=None) as batch_op:
        batch_op.add_column(sa.Column("closed_at", UTCDateTime(), nullable=True))
    op.execute("UPDATE api_tokens SET scopes = '[]'")
    op.execute(
        "UPDATE api_tokens SET tenant_id = (SELECT MIN(memberships.tenant_id) FROM memberships "
        "WHERE memberships.user_id = api_tokens.user_id)"
    )
    with op.batch_alter_table("api_tokens") as batch_op:
        batch_op.alter_column("scopes", existing_type=sa.JSON(), nullable=False)
        batch_op.alter_column("last_used_address", existing_type=sa.String(64), server_default=None)
    with op.batch_alter_table("enrolment_tokens") as batch_op:
        batch_op.alter_column("name", existing_type=sa.String(100), server_default=None)
        batch_op.alter_column("uses", existing_type=sa.Integer(), server_default=None)
    with op.batch_alter_table("login_sessions") as batch_op:
        batch_op.alter_column("address", existing_type=sa.String(64), server_default=None)
        batch_op.alter_column("user_agent", existing_type=sa.String(300), server_default=None)
    # Encrypted they are longer. Those that are there get encrypted by the server as it starts.
    with op.batch_alter_table("receivers", schema=None) as batch_op:
        batch_op.alter_column(
            "secret",
            existing_type=sa.String(length=100),
            type_=sa.String(length=500),
            existing_nullable=False,
        )


def downgrade() -> None:
    # The version before can't read them: its webhooks need new keys.
    op.execute("UPDATE receivers SET secret = '' WHERE length(secret) > 100")
    with op.batch_alter_table("receivers", schema=None) as batch_op:
        batch_op.alter_column(
            "secret",
            existing_type=sa.String(length=500),
            type_=sa.String(length=100),
            existing_nullable=False,
        )
    with op.batch_alter_table("tenants", schema=None) as batch_op:
        batch_op.drop_column("closed_at")
    with op.batch_alter_table("login_sessions", schema=None) as batch_op:
        batch_op.drop_constraint(
            batch_op.f("fk_login_sessions_support_visit_id"), type_="foreignkey"
        )
        batch_op.drop_constraint(batch_op.f("fk_login_sessions_tenant_id"), type_="foreignkey")
        batch_op.drop_index(batch_op.f("ix_login_sessions_tenant_id"))
        batch_op.drop_index(batch_op.f("ix_login_sessions_support_visit_id"))
        batch_op.drop_column("last_seen_at")
        batch_op.drop_column("user_agent")
        batch_op.drop_column("address")
        batch_op.drop_column("support_visit_id")
        batch_op.drop_column("tenant_id")
    with op.batch_alter_table("enrolment_tokens", schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f("fk_enrolment_tokens_created_by"), type_="foreignkey")
        batch_op.drop_constraint(batch_op.f("fk_enrolment_tokens_appliance_id"), type_="foreignkey")
        batch_op.drop_column("appliance_id")
        batch_op.drop_column("revoked_at")
        batch_op.drop_column("created_by")
        batch_op.drop_column("uses")
        batch_op.drop_column("name")
    with op.batch_alter_table("appliances", schema=None) as batch_op:
        batch_op.drop_index("ix_appliances_choices")
        batch_op.drop_index("ix_appliances_list")
        batch_op.drop_column("past_instances")
        batch_op.drop_column("instance_id")
        batch_op.drop_column("fenced_at")
        batch_op.drop_column("retired_at")
        batch_op.drop_column("appliance_class")
        batch_op.drop_column("gpu_model")
        batch_op.drop_column("gpu_count")
    with op.batch_alter_table("api_tokens", schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f("fk_api_tokens_tenant_id"), type_="foreignkey")
        batch_op.drop_index(batch_op.f("ix_api_tokens_tenant_id"))
        batch_op.drop_column("last_used_address")
        batch_op.drop_column("last_used_at")
        batch_op.drop_column("expires_at")
        batch_op.drop_column("scopes")
        batch_op.drop_column("tenant_id")
    op.drop_table("fleet_outages")
    op.drop_table("appliance_events")
    op.drop_table("appliance_certificates")
    op.drop_table("tenant_usage")
    op.drop_table("tenant_removals")
    op.drop_table("tenant_quotas")
    op.drop_table("support_visits")
    op.drop_table("recovery_codes")
    op.drop_table("password_resets")
    op.drop_table("oidc_identities")
    op.drop_table("invitations")
    op.drop_table("idempotency_keys")
    op.drop_table("throttles")
    op.drop_table("roll_revisions")
    op.drop_table("certificate_authorities")
    op.drop_table("audit_heads")
    op.drop_table("audit_entries")
