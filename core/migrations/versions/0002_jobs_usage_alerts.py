"""Fields of jobs and rules, templates, schedules, dashboards, images, usage, silences and routes.

Revision ID: 0002_jobs_usage_alerts
Revises: 0001_initial
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from core.db import UTCDateTime

revision = "0002_jobs_usage_alerts"
down_revision = "0001_initial"
branch_labels = None
depends_on = None

_QUOTAS = ("max_measurements", "max_fields")
_COUNTS = ("measurements", "fields")
_APPLIANCE_TIMES = ("last_placed_at", "drain_deadline_at")
# Their rows may be the platform's.
_OF_PLATFORM = ("notifications", "receivers")
# Of a column's rows so far; JSON has no default on MySQL.
_JOB_COLUMNS: tuple[tuple[str, sa.types.TypeEngine[Any], str], ...] = (
    ("labels", sa.JSON(), "'{}'"),
    ("gpu_models", sa.JSON(), "'[]'"),
    ("required_labels", sa.JSON(), "'{}'"),
    ("mounts", sa.JSON(), "'[]'"),
    ("ports", sa.JSON(), "'[]'"),
    ("retry_on", sa.JSON(), "'[]'"),
    ("working_dir", sa.String(length=300), "''"),
    ("shared_memory_bytes", sa.BigInteger(), "0"),
    ("priority", sa.Integer(), "0"),
    ("is_preemptible", sa.Boolean(), "0"),
    ("max_retries", sa.Integer(), "0"),
    ("time_limit_seconds", sa.Integer(), "0"),
    ("notify", sa.JSON(), "'[]'"),
    ("is_notice_due", sa.Boolean(), "0"),
    ("idle_gpu_percent", sa.Integer(), "0"),
    ("idle_gpu_seconds", sa.Integer(), "0"),
    ("dependencies", sa.JSON(), "'[]'"),
    ("array_size", sa.Integer(), "0"),
    ("array_limit", sa.Integer(), "0"),
    ("revision", sa.Integer(), "1"),
    ("queue_at", UTCDateTime(), "submitted_at"),
)
_RULE_COLUMNS: tuple[tuple[str, sa.types.TypeEngine[Any], str], ...] = (
    ("operator", sa.String(length=1), ""),
    ("other_field", sa.String(length=100), ""),
    ("ahead_seconds", sa.Double(), "0"),
    ("interval_seconds", sa.Double(), "0"),
    ("query_seconds", sa.Double(), "0"),
    ("series", sa.Integer(), "0"),
    ("skipped_evaluations", sa.Integer(), "0"),
    ("annotation", sa.String(length=1000), ""),
    ("pack_key", sa.String(length=60), ""),
)


def upgrade() -> None:
    """Add the columns and the tables."""
    for name in _QUOTAS:
        op.add_column("tenant_quotas", sa.Column(name, sa.Integer(), nullable=True))
    for name in _COUNTS:
        # Existing rows are those of running servers, which replace them every minute.
        count = sa.Column(name, sa.Integer(), nullable=False, server_default="0")
        op.add_column("series_counts", count)
    generation = sa.Column(
        "placement_generation", sa.BigInteger(), nullable=False, server_default="0"
    )
    op.add_column("tenants", generation)
    for name in _APPLIANCE_TIMES:
        op.add_column("appliances", sa.Column(name, UTCDateTime(), nullable=True))
    op.add_column("appliances", sa.Column("gpu_processes", sa.JSON(), nullable=True))
    op.add_column("appliances", sa.Column("report_id", sa.String(length=36), nullable=True))
    _add_job_columns()
    op.create_index("ix_jobs_is_notice_due", "jobs", ["is_notice_due"])
    op.add_column("jobs", sa.Column("retry_at", UTCDateTime(), nullable=True))
    op.add_column("jobs", sa.Column("array_id", sa.String(length=36), nullable=True))
    op.add_column("jobs", sa.Column("array_index", sa.Integer(), nullable=True))
    op.add_column("jobs", sa.Column("health_check", sa.JSON(), nullable=True))
    op.create_index("ix_jobs_array_id", "jobs", ["array_id"])
    op.create_index("ix_jobs_queue", "jobs", ["tenant_id", "state", "queue_at", "id"])
    op.drop_index("ix_jobs_tenant_id_state", "jobs")
    op.add_column("attempts", sa.Column("stop_reason", sa.String(length=32), nullable=True))
    log_state = sa.Column("log_state", sa.String(length=32), nullable=False, server_default="live")
    op.add_column("attempts", log_state)
    op.add_column(
        "attempts", sa.Column("log_is_full", sa.Boolean(), nullable=False, server_default="0")
    )
    op.add_column(
        "attempts", sa.Column("health", sa.String(length=32), nullable=False, server_default="")
    )
    op.add_column(
        "attempts", sa.Column("restarts", sa.Integer(), nullable=False, server_default="0")
    )
    op.create_table(
        "service_updates",
        _reference("service_id", "jobs.id", primary_key=True),
        _reference("tenant_id", "tenants.id", index=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("values", sa.JSON(), nullable=False),
        sa.Column("previous", sa.JSON(), nullable=False),
        sa.Column("changed", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False, index=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("requested_at", UTCDateTime(), nullable=False),
        sa.Column("finished_at", UTCDateTime(), nullable=True),
    )
    op.create_table(
        "tenant_queue_settings",
        sa.Column(
            "tenant_id",
            sa.String(length=36),
            sa.ForeignKey("tenants.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("placement_policy", sa.String(length=32), nullable=False),
        sa.Column("max_gpus_per_user", sa.Integer(), nullable=True),
        sa.Column("max_gpus", sa.Integer(), nullable=True),
        sa.Column("allows_preemption", sa.Boolean(), nullable=False),
        sa.Column("data_roots", sa.JSON(), nullable=False),
        sa.Column("job_retention_days", sa.Integer(), nullable=True),
    )

    for name, kind, value in _RULE_COLUMNS:
        op.add_column("rules", sa.Column(name, kind, nullable=False, server_default=value))
    op.add_column("rules", sa.Column("skipped_at", UTCDateTime(), nullable=True))
    op.create_table(
        "platform_rules",
        sa.Column("id", sa.String(length=36), primary_key=True),
        sa.Column("name", sa.String(length=100), nullable=False, unique=True),
        sa.Column("expression", sa.Text(), nullable=False),
        sa.Column("annotation", sa.String(length=1000), nullable=False),
        sa.Column("tenant_ids", sa.JSON(), nullable=False),
        sa.Column("receivers", sa.JSON(), nullable=False),
        sa.Column("is_enabled", sa.Boolean(), nullable=False),
        sa.Column(
            "created_by",
            sa.String(length=36),
            sa.ForeignKey("users.id", ondelete="SET NULL"),
            nullable=True,
            index=True,
        ),
        sa.Column("created_at", UTCDateTime(), nullable=False),
    )
    op.add_column("rules", sa.Column("actions", sa.JSON(), nullable=True))
    op.execute("UPDATE rules SET actions = '[]'")
    with op.batch_alter_table("rules") as rules:
        rules.alter_column("actions", existing_type=sa.JSON(), nullable=False)
        rules.add_column(sa.Column("platform_rule_id", sa.String(length=36), nullable=True))
        rules.create_foreign_key(
            "fk_rules_platform_rule_id_platform_rules",
            "platform_rules",
            ["platform_rule_id"],
            ["id"],
            ondelete="CASCADE",
        )
        rules.create_index("ix_rules_platform_rule_id", ["platform_rule_id"])
    for name in _OF_PLATFORM:
        with op.batch_alter_table(name) as table:
            table.alter_column("tenant_id", existing_type=sa.String(36), nullable=True)
    platform_name = sa.Computed("CASE WHEN tenant_id IS NULL THEN name END", persisted=False)
    op.add_column(
        "receivers", sa.Column("platform_name", sa.String(length=100), platform_name, nullable=True)
    )
    op.create_index("ix_receivers_platform_name", "receivers", ["platform_name"], unique=True)
    op.create_table(
        "job_dependencies",
        _reference("job_id", "jobs.id", primary_key=True),
        _reference("on_job_id", "jobs.id", primary_key=True, index=True),
        _reference("tenant_id", "tenants.id", index=True),
        sa.Column("condition", sa.String(length=32), nullable=False),
    )

    # A key of an added column needs a name, and on SQLite a copy of the table.
    with op.batch_alter_table("alerts") as alerts:
        alerts.add_column(sa.Column("acknowledged_at", UTCDateTime(), nullable=True))
        alerts.add_column(sa.Column("acknowledged_by", sa.String(length=36), nullable=True))
        alerts.create_foreign_key(
            "fk_alerts_acknowledged_by_users",
            "users",
            ["acknowledged_by"],
            ["id"],
            ondelete="SET NULL",
        )
        alerts.create_index("ix_alerts_acknowledged_by", ["acknowledged_by"])
    op.add_column("alert_transitions", sa.Column("acknowledged_at", UTCDateTime(), nullable=True))
    op.add_column(
        "notifications",
        sa.Column("group_key", sa.String(length=64), nullable=False, server_default=""),
    )
    _create_reports()
    op.create_table(
        "notification_policies",
        _reference("tenant_id", "tenants.id", primary_key=True),
        sa.Column("root", sa.JSON(), nullable=False),
        sa.Column("inhibit_rules", sa.JSON(), nullable=True),
        sa.Column("updated_at", UTCDateTime(), nullable=False),
    )
    op.create_table(
        "offered_rules",
        _reference("tenant_id", "tenants.id", primary_key=True),
        sa.Column("key", sa.String(length=60), primary_key=True),
    )
    op.create_table(
        "container_storage",
        _reference("appliance_id", "appliances.id", primary_key=True),
        _reference("tenant_id", "tenants.id", index=True),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("reported_at", UTCDateTime(), nullable=True),
        sa.Column("cleanup", sa.JSON(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("requested_at", UTCDateTime(), nullable=True),
    )
    op.create_table(
        "cleanup_policies",
        _reference("tenant_id", "tenants.id", primary_key=True),
        sa.Column("policies", sa.JSON(), nullable=False),
    )
    op.create_table(
        "job_templates",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("tenant_id", "tenants.id"),
        _owner("user_id", "users.id"),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("description", sa.String(length=500), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("updated_at", UTCDateTime(), nullable=False),
        sa.UniqueConstraint("tenant_id", "name"),
    )

    _create_schedules()
    _create_dashboards()

    op.create_table(
        "maintenance_windows",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("tenant_id", "tenants.id"),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("matchers", sa.JSON(), nullable=False),
        sa.Column("schedule", sa.String(length=200), nullable=False),
        sa.Column("time_zone", sa.String(length=64), nullable=False),
        sa.Column("duration_seconds", sa.Double(), nullable=False),
        sa.Column("next_at", UTCDateTime(), nullable=True, index=True),
        _owner("created_by", "users.id"),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.UniqueConstraint("tenant_id", "name"),
    )
    op.create_table(
        "silences",
        sa.Column("id", sa.String(length=36), primary_key=True),
        sa.Column(
            "tenant_id",
            sa.String(length=36),
            sa.ForeignKey("tenants.id", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("matchers", sa.JSON(), nullable=False),
        sa.Column("starts_at", UTCDateTime(), nullable=False),
        sa.Column("ends_at", UTCDateTime(), nullable=False, index=True),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column(
            "window_id",
            sa.String(length=36),
            sa.ForeignKey("maintenance_windows.id", ondelete="SET NULL"),
            nullable=True,
        ),
        sa.Column(
            "created_by",
            sa.String(length=36),
            sa.ForeignKey("users.id", ondelete="SET NULL"),
            nullable=True,
            index=True,
        ),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.UniqueConstraint("window_id", "starts_at"),
    )
    op.create_index("ix_silences_tenant_id_ends_at", "silences", ["tenant_id", "ends_at"])
    _create_alert_actions()
    _create_usage_ledger()
    _create_images()


def downgrade() -> None:
    """Drop the columns and the tables."""
    op.drop_table("alert_actions")
    op.drop_table("images")
    op.drop_index("ix_jobs_is_notice_due", "jobs")
    for name in ("finished_at", "assigned_at"):
        op.drop_index(f"ix_attempts_{name}", "attempts")
    op.drop_table("usage_hours")
    op.drop_table("usage_entries")
    op.drop_table("saved_views")
    op.drop_table("dashboards")
    op.drop_table("job_schedule_runs")
    op.drop_table("job_schedules")
    op.drop_table("cleanup_policies")
    op.drop_table("container_storage")
    op.drop_table("job_templates")
    op.drop_table("job_dependencies")
    op.drop_table("silences")
    op.drop_table("maintenance_windows")
    op.drop_table("offered_rules")
    op.drop_table("notification_policies")
    with op.batch_alter_table("notifications") as notifications:
        notifications.drop_constraint("fk_notifications_file_id", type_="foreignkey")
        notifications.drop_index("ix_notifications_file_id")
        notifications.drop_column("file_id")
        notifications.drop_column("group_key")
    op.drop_table("notification_files")
    op.drop_table("saved_reports")
    op.drop_column("alert_transitions", "acknowledged_at")
    with op.batch_alter_table("alerts") as alerts:
        alerts.drop_constraint("fk_alerts_acknowledged_by_users", type_="foreignkey")
        alerts.drop_index("ix_alerts_acknowledged_by")
        alerts.drop_column("acknowledged_by")
        alerts.drop_column("acknowledged_at")
    op.drop_index("ix_receivers_platform_name", "receivers")
    op.drop_column("receivers", "platform_name")
    for name in _OF_PLATFORM:
        op.execute(f"DELETE FROM {name} WHERE tenant_id IS NULL")  # noqa: S608 - our tables
        with op.batch_alter_table(name) as table:
            table.alter_column("tenant_id", existing_type=sa.String(36), nullable=False)
    with op.batch_alter_table("rules") as rules:
        rules.drop_constraint("fk_rules_platform_rule_id_platform_rules", type_="foreignkey")
        rules.drop_index("ix_rules_platform_rule_id")
        rules.drop_column("platform_rule_id")
    op.drop_table("platform_rules")
    op.drop_column("rules", "actions")
    op.drop_column("rules", "skipped_at")
    for name, _, _ in reversed(_RULE_COLUMNS):
        op.drop_column("rules", name)
    op.drop_table("tenant_queue_settings")
    op.drop_table("service_updates")
    for name in ("restarts", "health", "log_is_full", "log_state", "stop_reason"):
        op.drop_column("attempts", name)
    for name in ("report_id", "gpu_processes", *_APPLIANCE_TIMES):
        op.drop_column("appliances", name)
    op.drop_column("tenants", "placement_generation")
    op.create_index("ix_jobs_tenant_id_state", "jobs", ["tenant_id", "state"])
    op.drop_index("ix_jobs_queue", "jobs")
    op.drop_column("jobs", "retry_at")
    op.drop_index("ix_jobs_array_id", "jobs")
    op.drop_column("jobs", "health_check")
    op.drop_column("jobs", "array_index")
    op.drop_column("jobs", "array_id")
    for name, _, _ in reversed(_JOB_COLUMNS):
        op.drop_column("jobs", name)
    for name in _COUNTS:
        op.drop_column("series_counts", name)
    for name in _QUOTAS:
        op.drop_column("tenant_quotas", name)


def _create_alert_actions() -> None:
    op.create_table(
        "alert_actions",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("tenant_id", "tenants.id", index=True),
        _reference("rule_id", "rules.id"),
        _reference("alert_id", "alerts.id"),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("fired_at", UTCDateTime(), nullable=False),
        sa.Column("action", sa.JSON(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("due_at", UTCDateTime(), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("finished_at", UTCDateTime(), nullable=True),
        sa.UniqueConstraint("alert_id", "kind", "fired_at"),
    )
    for columns in (("state", "due_at"), ("rule_id", "kind", "finished_at")):
        name = f"ix_alert_actions_{'_'.join(columns)}"
        op.create_index(name, "alert_actions", list(columns))


def _create_schedules() -> None:
    op.create_table(
        "job_schedules",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("tenant_id", "tenants.id"),
        _owner("user_id", "users.id"),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("schedule", sa.String(length=200), nullable=False),
        sa.Column("time_zone", sa.String(length=64), nullable=False),
        sa.Column("overlap", sa.String(length=32), nullable=False),
        sa.Column("missed", sa.String(length=32), nullable=False),
        sa.Column("is_enabled", sa.Boolean(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column(
            "secret_env",
            sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb"),
            nullable=True,
        ),
        sa.Column("secret_names", sa.JSON(), nullable=False),
        sa.Column("next_run_at", UTCDateTime(), nullable=True, index=True),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.UniqueConstraint("tenant_id", "name"),
    )
    op.create_table(
        "job_schedule_runs",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("schedule_id", "job_schedules.id"),
        _reference("tenant_id", "tenants.id", index=True),
        sa.Column("due_at", UTCDateTime(), nullable=False),
        sa.Column("outcome", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        _owner("job_id", "jobs.id"),
    )
    op.create_index(
        "ix_job_schedule_runs_schedule_id_id", "job_schedule_runs", ["schedule_id", "id"]
    )


def _create_reports() -> None:
    op.create_table(
        "saved_reports",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("tenant_id", "tenants.id", index=True),
        _reference("user_id", "users.id", index=True),
        sa.Column("name", sa.String(length=100), nullable=False),
        *(
            sa.Column(name, sa.String(length=32), nullable=False)
            for name in ("kind", "by", "period")
        ),
        sa.Column("time_zone", sa.String(length=64), nullable=False),
        sa.Column("appliances", sa.String(length=200), nullable=False),
        sa.Column("price_per_kilowatt_hour", sa.Double(), nullable=False),
        sa.Column("target_percent", sa.Double(), nullable=False),
        sa.Column("schedule", sa.String(length=200), nullable=False),
        sa.Column("file_format", sa.String(length=32), nullable=False),
        sa.Column("recipients", sa.JSON(), nullable=False),
        sa.Column("is_enabled", sa.Boolean(), nullable=False),
        sa.Column("next_run_at", UTCDateTime(), nullable=True, index=True),
        sa.Column("last_run_at", UTCDateTime(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.UniqueConstraint("tenant_id", "name"),
    )
    op.create_table(
        "notification_files",
        sa.Column("id", sa.String(length=36), primary_key=True),
        _reference("tenant_id", "tenants.id", index=True),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("media_type", sa.String(length=100), nullable=False),
        sa.Column(
            "content",
            sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql", "mariadb"),
            nullable=False,
        ),
        sa.Column("created_at", UTCDateTime(), nullable=False, index=True),
    )
    with op.batch_alter_table("notifications") as notifications:
        notifications.add_column(sa.Column("file_id", sa.String(length=36), nullable=True))
        notifications.create_foreign_key(
            "fk_notifications_file_id",
            "notification_files",
            ["file_id"],
            ["id"],
            ondelete="SET NULL",
        )
        notifications.create_index("ix_notifications_file_id", ["file_id"])


def _create_images() -> None:
    exact = mysql.VARCHAR(128, charset="utf8mb4", collation="utf8mb4_bin")
    op.create_table(
        "images",
        sa.Column("id", sa.String(length=36), primary_key=True),
        sa.Column(
            "tenant_id",
            sa.String(length=36),
            sa.ForeignKey("tenants.id", ondelete="CASCADE"),
            nullable=True,
            index=True,
        ),
        sa.Column("repository", sa.String(length=255), nullable=False),
        sa.Column(
            "tag", sa.String(length=128).with_variant(exact, "mysql", "mariadb"), nullable=False
        ),
        sa.Column("digest", sa.String(length=100), nullable=False),
        sa.Column("media_type", sa.String(length=100), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("layers", sa.JSON(), nullable=False),
        sa.Column("pushed_by", sa.String(length=254), nullable=False),
        sa.Column("pushed_at", UTCDateTime(), nullable=False),
        sa.UniqueConstraint("repository", "tag"),
    )


def _create_usage_ledger() -> None:
    op.create_table(
        "usage_entries",
        sa.Column("id", sa.String(length=36), primary_key=True),
        sa.Column("hour_at", UTCDateTime(), nullable=False, index=True),
        sa.Column(
            "tenant_id",
            sa.String(length=36),
            sa.ForeignKey("tenants.id", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("user_id", sa.String(length=36), nullable=True),
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("job_name", sa.String(length=100), nullable=False),
        sa.Column("attempt_id", sa.String(length=36), nullable=False),
        sa.Column("appliance_id", sa.String(length=36), nullable=False),
        sa.Column("gpu_model", sa.String(length=200), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("allocated_milliseconds", sa.BigInteger(), nullable=False),
        sa.Column("used_milliseconds", sa.BigInteger(), nullable=False),
        sa.Column("idle_milliseconds", sa.BigInteger(), nullable=False),
        sa.Column("energy_joules", sa.BigInteger(), nullable=False),
        sa.Column("recorded_at", UTCDateTime(), nullable=False),
        sa.UniqueConstraint("attempt_id", "hour_at", "gpu_model", "revision"),
    )
    op.create_index("ix_usage_entries_tenant_id_hour_at", "usage_entries", ["tenant_id", "hour_at"])
    op.create_table(
        "usage_hours",
        sa.Column("hour_at", UTCDateTime(), primary_key=True),
        sa.Column("recorded_at", UTCDateTime(), nullable=False),
        sa.Column("next_check_at", UTCDateTime(), nullable=True, index=True),
    )
    # An hour's attempts are found by when they were allocated.
    for name in ("assigned_at", "finished_at"):
        op.create_index(f"ix_attempts_{name}", "attempts", [name])


def _create_dashboards() -> None:
    for table, columns in {
        "dashboards": (
            sa.Column("description", sa.String(length=500), nullable=False),
            sa.Column("panels", sa.JSON(), nullable=False),
            sa.Column("updated_at", UTCDateTime(), nullable=False),
        ),
        "saved_views": (
            sa.Column("address", sa.String(length=1000), nullable=False),
            sa.Column("is_default", sa.Boolean(), nullable=False),
        ),
    }.items():
        op.create_table(
            table,
            sa.Column("id", sa.String(length=36), primary_key=True),
            _reference("tenant_id", "tenants.id", index=True, nullable=True),
            _owner("user_id", "users.id"),
            sa.Column("name", sa.String(length=100), nullable=False),
            sa.Column("is_shared", sa.Boolean(), nullable=False),
            *columns,
            sa.Column("created_at", UTCDateTime(), nullable=False),
            sa.UniqueConstraint("tenant_id", "user_id", "name"),
        )


def _reference(
    name: str,
    target: str,
    *,
    primary_key: bool = False,
    index: bool = False,
    nullable: bool = False,
) -> sa.Column[str]:
    key = sa.ForeignKey(target, ondelete="CASCADE")
    return sa.Column(
        name, sa.String(length=36), key, primary_key=primary_key, nullable=nullable, index=index
    )


def _owner(name: str, target: str) -> sa.Column[str]:
    key = sa.ForeignKey(target, ondelete="SET NULL")
    return sa.Column(name, sa.String(length=36), key, nullable=True, index=True)


def _add_job_columns() -> None:
    # SQLite can change a column only by copying its table.
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for name, kind, value in _JOB_COLUMNS:
        default = "'1970-01-01 00:00:00'" if name == "queue_at" else value
        column = sa.Column(name, kind, nullable=True)
        if is_sqlite:
            column = sa.Column(name, kind, nullable=False, server_default=sa.text(default))
        op.add_column("jobs", column)
    filled = ", ".join(f"{name} = {value}" for name, _, value in _JOB_COLUMNS)
    op.execute(f"UPDATE jobs SET {filled}")  # noqa: S608 - constants
    if not is_sqlite:
        for name, kind, _ in _JOB_COLUMNS:
            op.alter_column("jobs", name, existing_type=kind, nullable=False)
