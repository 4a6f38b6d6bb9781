"""The initial schema. Constraints get their names from `core.db.NAMING`.

Revision ID: 0001_initial
Revises: nothing
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from core.db import UTCDateTime

revision = "0001_initial"
down_revision = None
branch_labels = None
depends_on = None

LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
BIG_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _reference(
    name: str,
    target: str,
    *,
    ondelete: str | None = "CASCADE",
    nullable: bool = False,
    index: bool = False,
) -> sa.Column[str]:
    """Return a column of ids with a foreign key."""
    key = sa.ForeignKey(target, ondelete=ondelete)
    return sa.Column(name, sa.String(length=36), key, nullable=nullable, index=index)


def upgrade() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.String(length=36), primary_key=True),
        sa.Column("chain", sa.String(length=36), nullable=False),
        sa.Column("number", BIG_NUMBER, nullable=False),
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
        sa.UniqueConstraint("chain", "number"),
    )
    op.create_index("ix_audit_entries_at", "audit_entries", ["at"])
    op.create_index(
        "ix_audit_entries_chain_action_number", "audit_entries", ["chain", "action", "number"]
    )
    op.create_index(
        "ix_audit_entries_chain_actor_name_number",
        "audit_entries",
        ["chain", "actor_name", "number"],
    )
    op.create_index("ix_audit_entries_chain_at", "audit_entries", ["chain", "at"])
    op.create_index(
        "ix_audit_entries_chain_target_id_number", "audit_entries", ["chain", "target_id", "number"]
    )
    op.create_table(
        "audit_heads",
        sa.Column("chain", sa.String(length=36), nullable=False),
        sa.Column("number", BIG_NUMBER, nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("chain"),
    )
    op.create_table(
        "certificate_authorities",
        sa.Column("id", sa.String(length=36), primary_key=True),
        sa.Column("certificate", sa.Text(), nullable=False),
        sa.Column("private_key", sa.Text(), nullable=False),
        sa.Column("not_before", UTCDateTime(), nullable=False),
        sa.Column("not_after", UTCDateTime(), nullable=False),
        sa.Column("retired_at", UTCDateTime(), nullable=True),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("expires_at", UTCDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "agent_registry_revisions",
        sa.Column("id", sa.String(length=36), primary_key=True),
        sa.Column("number", BIG_NUMBER, nullable=False),
    )
    op.create_table(
        "tenant_removals",
        sa.Column("id", sa.String(length=36), primary_key=True),
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
        sa.Column("file_bytes", BIG_NUMBER, nullable=False),
        sa.Column("discarded_at", UTCDateTime(), nullable=True),
        sa.UniqueConstraint("tenant_id"),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(length=36), primary_key=True),
        sa.Column("slug", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("closed_at", UTCDateTime(), nullable=True),
        sa.UniqueConstraint("slug"),
    )
    op.create_table(
        "throttles",
        sa.Column("id", sa.String(length=36), primary_key=True),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("subject", sa.String(length=64), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("first_failed_at", UTCDateTime(), nullable=False),
        sa.Column("locked_until", UTCDateTime(), nullable=True),
        sa.UniqueConstraint("kind", "subject"),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=36), primary_key=True),
        sa.Column("email", sa.String(length=254), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("password_hash", sa.String(length=200), nullable=True),
        sa.Column("is_operator", sa.Boolean(), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("totp_secret", sa.String(length=500), nullable=True),
        sa.Column("totp_confirmed_at", UTCDateTime(), nullable=True),
        sa.Column("totp_last_step", BIG_NUMBER, nullable=True),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.UniqueConstraint("email"),
    )
    op.create_table(
        "api_tokens",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("user_id", "users.id", index=True),
        _reference("tenant_id", "tenants.id", nullable=True, index=True),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("expires_at", UTCDateTime(), nullable=True),
        sa.Column("last_used_at", UTCDateTime(), nullable=True),
        sa.Column("last_used_address", sa.String(length=64), nullable=False),
        sa.Column("revoked_at", UTCDateTime(), nullable=True),
        sa.UniqueConstraint("secret_hash"),
    )
    op.create_table(
        "appliances",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("tenant_id", "tenants.id", index=True),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("site", sa.String(length=100), nullable=False),
        sa.Column("region", sa.String(length=100), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("inventory", sa.JSON(), nullable=False),
        sa.Column("health", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("health_state", sa.String(length=32), nullable=True),
        sa.Column("gpu_count", sa.Integer(), nullable=False),
        sa.Column("gpu_model", sa.String(length=200), nullable=False),
        sa.Column("appliance_class", sa.String(length=100), nullable=False),
        sa.Column("agent_version", sa.String(length=50), nullable=False),
        sa.Column("clock_skew_seconds", sa.Double(), nullable=True),
        sa.Column("desired_generation", sa.BigInteger(), nullable=False),
        sa.Column("enrolled_at", UTCDateTime(), nullable=False),
        sa.Column("last_seen_at", UTCDateTime(), nullable=True),
        sa.Column("drained_at", UTCDateTime(), nullable=True),
        sa.Column("retired_at", UTCDateTime(), nullable=True),
        sa.Column("revoked_at", UTCDateTime(), nullable=True),
        sa.Column("fenced_at", UTCDateTime(), nullable=True),
        sa.Column("instance_id", sa.String(length=36), nullable=True),
        sa.Column("past_instances", sa.JSON(none_as_null=True), nullable=True),
        sa.UniqueConstraint("secret_hash"),
        sa.UniqueConstraint("tenant_id", "name"),
    )
    op.create_index(
        "ix_appliances_choices",
        "appliances",
        ["tenant_id", "revoked_at", "retired_at", "appliance_class", "site", "region", "gpu_model"],
    )
    op.create_index(
        "ix_appliances_list",
        "appliances",
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
    )
    op.create_table(
        "fleet_outages",
        sa.Column("id", sa.String(length=36), primary_key=True),
        sa.Column("began_at", UTCDateTime(), nullable=False),
        sa.Column("ended_at", UTCDateTime(), nullable=True),
        sa.Column("unreachable_count", sa.Integer(), nullable=False),
        sa.Column("fleet_count", sa.Integer(), nullable=False),
        sa.Column("notified_at", UTCDateTime(), nullable=True),
        sa.Column("released_at", UTCDateTime(), nullable=True),
        _reference("released_by", "users.id", ondelete="SET NULL", nullable=True),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("user_id", "users.id", index=True),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("answer", LONG_TEXT, nullable=True),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.UniqueConstraint("user_id", "key"),
    )
    op.create_table(
        "invitations",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("tenant_id", "tenants.id", nullable=True, index=True),
        sa.Column("email", sa.String(length=254), nullable=False),
        sa.Column("role", sa.String(length=32), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        _reference("invited_by", "users.id", ondelete="SET NULL", nullable=True),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("expires_at", UTCDateTime(), nullable=False),
        sa.Column("accepted_at", UTCDateTime(), nullable=True),
        sa.Column("revoked_at", UTCDateTime(), nullable=True),
        sa.UniqueConstraint("secret_hash"),
    )
    op.create_table(
        "memberships",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("user_id", "users.id", index=True),
        _reference("tenant_id", "tenants.id", index=True),
        sa.Column("role", sa.String(length=32), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.UniqueConstraint("user_id", "tenant_id"),
    )
    op.create_table(
        "oidc_identities",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("user_id", "users.id", index=True),
        sa.Column("issuer", sa.String(length=255), nullable=False),
        sa.Column(
            "subject",
            sa.String(length=255)
            .with_variant(
                mysql.VARCHAR(charset="utf8mb4", collation="utf8mb4_bin", length=255), "mariadb"
            )
            .with_variant(
                mysql.VARCHAR(charset="utf8mb4", collation="utf8mb4_bin", length=255), "mysql"
            ),
            nullable=False,
        ),
        sa.Column("granted", sa.JSON(), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("last_used_at", UTCDateTime(), nullable=True),
        sa.UniqueConstraint("issuer", "subject"),
    )
    op.create_table(
        "password_resets",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("user_id", "users.id", index=True),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("expires_at", UTCDateTime(), nullable=False),
        sa.Column("used_at", UTCDateTime(), nullable=True),
        sa.UniqueConstraint("secret_hash"),
    )
    op.create_table(
        "quota_warnings",
        _reference("tenant_id", "tenants.id"),
        sa.Column("quota", sa.String(length=32), nullable=False),
        sa.Column("level_percent", sa.Integer(), nullable=False),
        sa.Column("changed_at", UTCDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "quota"),
    )
    op.create_table(
        "receivers",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("tenant_id", "tenants.id"),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("target", sa.String(length=500), nullable=False),
        sa.Column("secret", sa.String(length=500), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.UniqueConstraint("tenant_id", "name"),
    )
    op.create_table(
        "recovery_codes",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("user_id", "users.id", index=True),
        sa.Column("code_hash", sa.String(length=64), nullable=False),
        sa.Column("used_at", UTCDateTime(), nullable=True),
    )
    op.create_table(
        "rules",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("tenant_id", "tenants.id"),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("measurement", sa.String(length=100), nullable=False),
        sa.Column("field", sa.String(length=100), nullable=False),
        sa.Column("aggregate", sa.String(length=10), nullable=False),
        sa.Column("window_seconds", sa.Double(), nullable=False),
        sa.Column("group_by", sa.JSON(), nullable=False),
        sa.Column("filters", sa.JSON(), nullable=False),
        sa.Column("comparison", sa.String(length=32), nullable=False),
        sa.Column("warning_threshold", sa.Double(), nullable=True),
        sa.Column("critical_threshold", sa.Double(), nullable=True),
        sa.Column("warning_reset", sa.Double(), nullable=True),
        sa.Column("critical_reset", sa.Double(), nullable=True),
        sa.Column("for_seconds", sa.Double(), nullable=False),
        sa.Column("keep_firing_seconds", sa.Double(), nullable=False),
        sa.Column("no_data", sa.String(length=32), nullable=False),
        sa.Column("is_enabled", sa.Boolean(), nullable=False),
        sa.Column("receiver_ids", sa.JSON(), nullable=False),
        _reference("created_by", "users.id", ondelete="SET NULL", nullable=True, index=True),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("evaluated_at", UTCDateTime(), nullable=True),
        sa.Column("evaluation_error", sa.Text(), nullable=False),
        sa.UniqueConstraint("tenant_id", "name"),
    )
    op.create_table(
        "series_counts",
        _reference("tenant_id", "tenants.id"),
        sa.Column("server", sa.String(length=64), nullable=False),
        sa.Column("series", sa.Integer(), nullable=False),
        sa.Column("counted_at", UTCDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "server"),
    )
    op.create_table(
        "support_sessions",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("operator_id", "users.id", index=True),
        _reference("tenant_id", "tenants.id", index=True),
        _reference("as_user_id", "users.id", index=True),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.Column("started_at", UTCDateTime(), nullable=False),
        sa.Column("expires_at", UTCDateTime(), nullable=False),
        sa.Column("ended_at", UTCDateTime(), nullable=True),
    )
    op.create_table(
        "tenant_quotas",
        _reference("tenant_id", "tenants.id"),
        sa.Column("max_appliances", sa.Integer(), nullable=True),
        sa.Column("max_gpus", sa.Integer(), nullable=True),
        sa.Column("max_active_jobs", sa.Integer(), nullable=True),
        sa.Column("max_series", sa.Integer(), nullable=True),
        sa.Column("max_storage_bytes", BIG_NUMBER, nullable=True),
        sa.PrimaryKeyConstraint("tenant_id"),
    )
    op.create_table(
        "tenant_usage",
        _reference("tenant_id", "tenants.id"),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("measured_at", UTCDateTime(), nullable=False),
        sa.Column("appliances", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("points", BIG_NUMBER, nullable=False),
        sa.Column("storage_bytes", BIG_NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "day"),
    )
    op.create_index("ix_tenant_usage_day", "tenant_usage", ["day"])
    op.create_table(
        "alerts",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("rule_id", "rules.id"),
        _reference("tenant_id", "tenants.id"),
        sa.Column("group_key", sa.String(length=64), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("severity", sa.String(length=32), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("active_since_at", UTCDateTime(), nullable=True),
        sa.Column("fired_at", UTCDateTime(), nullable=True),
        sa.Column("resolved_at", UTCDateTime(), nullable=True),
        sa.Column("last_breach_at", UTCDateTime(), nullable=True),
        sa.Column("observed_at", UTCDateTime(), nullable=False),
        sa.Column("updated_at", UTCDateTime(), nullable=False),
        sa.UniqueConstraint("rule_id", "group_key"),
    )
    op.create_index("ix_alerts_tenant_id_state", "alerts", ["tenant_id", "state"])
    op.create_table(
        "appliance_certificates",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("tenant_id", "tenants.id", index=True),
        _reference("appliance_id", "appliances.id", index=True),
        _reference("authority_id", "certificate_authorities.id", ondelete=None),
        sa.Column("serial", sa.String(length=40), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("not_before", UTCDateTime(), nullable=False),
        sa.Column("not_after", UTCDateTime(), nullable=False),
        sa.Column("issued_at", UTCDateTime(), nullable=False),
        sa.Column("first_used_at", UTCDateTime(), nullable=True),
        sa.Column("replaced_at", UTCDateTime(), nullable=True),
        sa.Column("revoked_at", UTCDateTime(), nullable=True),
        sa.Column("revocation_reason", sa.String(length=500), nullable=False),
        sa.UniqueConstraint("fingerprint"),
        sa.UniqueConstraint("serial"),
    )
    op.create_index(
        op.f("ix_appliance_certificates_not_after"), "appliance_certificates", ["not_after"]
    )
    op.create_table(
        "appliance_events",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("tenant_id", "tenants.id", index=True),
        _reference("appliance_id", "appliances.id"),
        sa.Column("at", UTCDateTime(), nullable=False),
        sa.Column("kind", sa.String(length=50), nullable=False),
        sa.Column("message", sa.String(length=500), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
    )
    op.create_index(
        "ix_appliance_events_appliance_id_at", "appliance_events", ["appliance_id", "at"]
    )
    op.create_index("ix_appliance_events_at", "appliance_events", ["at"])
    op.create_table(
        "enrollment_tokens",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("tenant_id", "tenants.id", index=True),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("site", sa.String(length=100), nullable=False),
        sa.Column("region", sa.String(length=100), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.Column("uses_left", sa.Integer(), nullable=False),
        _reference("appliance_id", "appliances.id", nullable=True),
        _reference("created_by", "users.id", ondelete="SET NULL", nullable=True),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("expires_at", UTCDateTime(), nullable=False),
        sa.Column("revoked_at", UTCDateTime(), nullable=True),
        sa.UniqueConstraint("secret_hash"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("tenant_id", "tenants.id"),
        _reference("user_id", "users.id", ondelete="SET NULL", nullable=True, index=True),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("image", sa.String(length=300), nullable=False),
        sa.Column("command", sa.JSON(), nullable=False),
        sa.Column("env", sa.JSON(), nullable=False),
        sa.Column("secret_names", sa.JSON(), nullable=False),
        sa.Column("secret_env", LONG_TEXT, nullable=True),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("gpu_memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("container_policy", sa.String(length=32), nullable=False),
        _reference("appliance_id", "appliances.id", ondelete="SET NULL", nullable=True, index=True),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("submitted_at", UTCDateTime(), nullable=False),
        sa.Column("started_at", UTCDateTime(), nullable=True),
        sa.Column("finished_at", UTCDateTime(), nullable=True),
        sa.Column("stop_requested_at", UTCDateTime(), nullable=True),
    )
    op.create_index("ix_jobs_tenant_id_id", "jobs", ["tenant_id", "id"])
    op.create_index("ix_jobs_tenant_id_state", "jobs", ["tenant_id", "state"])
    op.create_table(
        "tenant_container_policies",
        sa.Column(
            "tenant_id",
            sa.String(length=36),
            sa.ForeignKey("tenants.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("allowed", sa.JSON(), nullable=False),
        sa.Column("default", sa.String(length=32), nullable=False),
    )
    op.create_table(
        "login_sessions",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("user_id", "users.id", index=True),
        _reference("tenant_id", "tenants.id", nullable=True, index=True),
        _reference(
            "support_session_id",
            "support_sessions.id",
            ondelete="SET NULL",
            nullable=True,
            index=True,
        ),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("user_agent", sa.String(length=300), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("last_seen_at", UTCDateTime(), nullable=True),
        sa.Column("expires_at", UTCDateTime(), nullable=False),
        sa.UniqueConstraint("secret_hash"),
    )
    op.create_table(
        "alert_transitions",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("alert_id", "alerts.id", index=True),
        _reference("tenant_id", "tenants.id", index=True),
        sa.Column("from_state", sa.String(length=32), nullable=False),
        sa.Column("to_state", sa.String(length=32), nullable=False),
        sa.Column("severity", sa.String(length=32), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("at", UTCDateTime(), nullable=False),
    )
    op.create_table(
        "attempts",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("job_id", "jobs.id"),
        _reference("tenant_id", "tenants.id", index=True),
        _reference("appliance_id", "appliances.id"),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("gpu_uuids", sa.JSON(), nullable=False),
        sa.Column("placement", sa.JSON(), nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("bound_at", UTCDateTime(), nullable=False),
        sa.Column("assigned_at", UTCDateTime(), nullable=True),
        sa.Column("started_at", UTCDateTime(), nullable=True),
        sa.Column("finished_at", UTCDateTime(), nullable=True),
        sa.Column("log_bytes", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("job_id", "number"),
    )
    op.create_index("ix_attempts_appliance_id_state", "attempts", ["appliance_id", "state"])
    op.create_table(
        "job_events",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("job_id", "jobs.id", index=True),
        _reference("tenant_id", "tenants.id", index=True),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("at", UTCDateTime(), nullable=False),
    )
    op.create_table(
        "notifications",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("tenant_id", "tenants.id", index=True),
        _reference("receiver_id", "receivers.id", nullable=True, index=True),
        sa.Column("address", sa.String(length=254), nullable=False),
        _reference("alert_id", "alerts.id", ondelete="SET NULL", nullable=True, index=True),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("next_try_at", UTCDateTime(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("sent_at", UTCDateTime(), nullable=True),
    )
    op.create_index("ix_notifications_state_next_try_at", "notifications", ["state", "next_try_at"])
    op.create_table(
        "attempt_log_chunks",
        _reference("attempt_id", "attempts.id"),
        sa.Column("offset", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column(
            "data",
            sa.LargeBinary()
            .with_variant(mysql.MEDIUMBLOB(), "mariadb")
            .with_variant(mysql.MEDIUMBLOB(), "mysql"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("attempt_id", "offset"),
    )


def downgrade() -> None:
    op.drop_table("attempt_log_chunks")
    op.drop_table("notifications")
    op.drop_table("job_events")
    op.drop_table("attempts")
    op.drop_table("alert_transitions")
    op.drop_table("login_sessions")
    op.drop_table("tenant_container_policies")
    op.drop_table("jobs")
    op.drop_table("enrollment_tokens")
    op.drop_table("appliance_events")
    op.drop_table("appliance_certificates")
    op.drop_table("alerts")
    op.drop_table("tenant_usage")
    op.drop_table("tenant_quotas")
    op.drop_table("support_sessions")
    op.drop_table("series_counts")
    op.drop_table("rules")
    op.drop_table("recovery_codes")
    op.drop_table("receivers")
    op.drop_table("quota_warnings")
    op.drop_table("password_resets")
    op.drop_table("oidc_identities")
    op.drop_table("memberships")
    op.drop_table("invitations")
    op.drop_table("idempotency_keys")
    op.drop_table("fleet_outages")
    op.drop_table("appliances")
    op.drop_table("api_tokens")
    op.drop_table("users")
    op.drop_table("throttles")
    op.drop_table("tenants")
    op.drop_table("tenant_removals")
    op.drop_table("agent_registry_revisions")
    op.drop_table("leases")
    op.drop_table("certificate_authorities")
    op.drop_table("audit_heads")
    op.drop_table("audit_entries")
