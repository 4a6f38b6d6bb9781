"""Datasets, results of jobs, and private networks of gangs.

Revision ID: 0028_training
Revises: 0027_simulations
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from core.db import UTCDateTime

revision = "0028_training"
down_revision = "0027_simulations"
branch_labels = None
depends_on = None

_SETTINGS = ("allows_gang_egress", "allows_host_network", "encrypts_gang_networks")


def upgrade() -> None:
    """Create the tables and add the columns."""
    exact = mysql.VARCHAR(1024, charset="utf8mb4", collation="utf8mb4_bin")
    op.create_table(
        "data_connections",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("url", sa.String(length=1000), nullable=False),
        sa.Column("endpoint_url", sa.String(length=1000), nullable=False),
        sa.Column("region", sa.String(length=100), nullable=False),
        sa.Column("access_key_id", sa.String(length=200), nullable=False),
        sa.Column("secrets", sa.Text(), nullable=True),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_data_connections_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_data_connections")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_data_connections_tenant_id_name")),
    )
    op.create_table(
        "data_parts",
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("is_in_bucket", sa.Boolean(), nullable=False),
        sa.Column("last_used_at", UTCDateTime(), nullable=False),
        sa.Column("is_deleting", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_data_parts_tenant_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("tenant_id", "sha256", name=op.f("pk_data_parts")),
    )
    with op.batch_alter_table("data_parts", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_data_parts_last_used_at"), ["last_used_at"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_data_parts_is_deleting"), ["is_deleting"], unique=False
        )

    op.create_table(
        "gang_networks",
        sa.Column("gang_id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("vni", sa.Integer(), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("released_at", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_gang_networks_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("gang_id", name=op.f("pk_gang_networks")),
        sa.UniqueConstraint("vni", name=op.f("uq_gang_networks_vni")),
    )
    with op.batch_alter_table("gang_networks", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_gang_networks_tenant_id"), ["tenant_id"], unique=False)

    op.create_table(
        "appliance_caches",
        sa.Column("appliance_id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("cache_bytes", sa.BigInteger(), nullable=False),
        sa.Column("cache_limit_bytes", sa.BigInteger(), nullable=False),
        sa.Column("peer_url", sa.String(length=300), nullable=False),
        sa.Column("reported_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["appliance_id"],
            ["appliances.id"],
            name=op.f("fk_appliance_caches_appliance_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_appliance_caches_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("appliance_id", name=op.f("pk_appliance_caches")),
    )
    with op.batch_alter_table("appliance_caches", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_appliance_caches_tenant_id"), ["tenant_id"], unique=False
        )

    op.create_table(
        "datasets",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=True),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("description", sa.String(length=500), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("source_url", sa.String(length=1000), nullable=False),
        sa.Column("connection_id", sa.String(length=36), nullable=True),
        sa.Column("last_number", sa.Integer(), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["connection_id"],
            ["data_connections.id"],
            name=op.f("fk_datasets_connection_id"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_datasets_tenant_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_datasets_user_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_datasets")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_datasets_tenant_id_name")),
    )
    with op.batch_alter_table("datasets", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_datasets_user_id"), ["user_id"], unique=False)

    op.create_table(
        "tenant_data_settings",
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("results_connection_id", sa.String(length=36), nullable=True),
        sa.Column("results_retention_days", sa.Integer(), nullable=True),
        sa.Column("allows_peers", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["results_connection_id"],
            ["data_connections.id"],
            name=op.f("fk_tenant_data_settings_results_connection_id"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_tenant_data_settings_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_tenant_data_settings")),
    )
    op.create_table(
        "dataset_versions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("dataset_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=True),
        sa.Column("head", sa.JSON(), nullable=True),
        sa.Column("file_count", sa.BigInteger(), nullable=False),
        sa.Column("total_bytes", sa.BigInteger(), nullable=False),
        sa.Column("indexing_appliance_id", sa.String(length=36), nullable=True),
        sa.Column("requested_appliance_id", sa.String(length=36), nullable=True),
        sa.Column("upload_key", sa.String(length=64), nullable=True),
        sa.Column("indexed_bytes", sa.BigInteger(), nullable=False),
        sa.Column("parts_stored", sa.Boolean(), nullable=False),
        sa.Column("is_scheduled", sa.Boolean(), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("active_at", UTCDateTime(), nullable=False),
        sa.Column("ready_at", UTCDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["dataset_id"],
            ["datasets.id"],
            name=op.f("fk_dataset_versions_dataset_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["indexing_appliance_id"],
            ["appliances.id"],
            name=op.f("fk_dataset_versions_indexing_appliance_id"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["requested_appliance_id"],
            ["appliances.id"],
            name=op.f("fk_dataset_versions_requested_appliance_id"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_dataset_versions_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dataset_versions")),
        sa.UniqueConstraint(
            "dataset_id", "number", name=op.f("uq_dataset_versions_dataset_id_number")
        ),
    )
    with op.batch_alter_table("dataset_versions", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_dataset_versions_indexing_appliance_id"),
            ["indexing_appliance_id"],
            unique=False,
        )
        batch_op.create_index(batch_op.f("ix_dataset_versions_state"), ["state"], unique=False)
        batch_op.create_index(
            "ix_dataset_versions_tenant_id_digest", ["tenant_id", "digest"], unique=False
        )

    op.create_table(
        "dataset_prefetches",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("dataset_id", sa.String(length=36), nullable=False),
        sa.Column("version_id", sa.String(length=36), nullable=True),
        sa.Column("appliance_id", sa.String(length=36), nullable=True),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("is_pinned", sa.Boolean(), nullable=False),
        sa.Column("schedule", sa.String(length=200), nullable=False),
        sa.Column("time_zone", sa.String(length=64), nullable=False),
        sa.Column("next_run_at", UTCDateTime(), nullable=True),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["appliance_id"],
            ["appliances.id"],
            name=op.f("fk_dataset_prefetches_appliance_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["dataset_id"],
            ["datasets.id"],
            name=op.f("fk_dataset_prefetches_dataset_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_dataset_prefetches_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["dataset_versions.id"],
            name=op.f("fk_dataset_prefetches_version_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dataset_prefetches")),
    )
    with op.batch_alter_table("dataset_prefetches", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_dataset_prefetches_appliance_id"), ["appliance_id"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_dataset_prefetches_dataset_id"), ["dataset_id"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_dataset_prefetches_next_run_at"), ["next_run_at"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_dataset_prefetches_tenant_id"), ["tenant_id"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_dataset_prefetches_version_id"), ["version_id"], unique=False
        )

    op.create_table(
        "dataset_copies",
        sa.Column("version_id", sa.String(length=36), nullable=False),
        sa.Column("appliance_id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("cached_bytes", sa.BigInteger(), nullable=False),
        sa.Column("fetched_bytes", sa.BigInteger(), nullable=False),
        sa.Column("peer_bytes", sa.BigInteger(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("last_used_at", UTCDateTime(), nullable=True),
        sa.Column("reported_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["appliance_id"],
            ["appliances.id"],
            name=op.f("fk_dataset_copies_appliance_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_dataset_copies_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["dataset_versions.id"],
            name=op.f("fk_dataset_copies_version_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("version_id", "appliance_id", name=op.f("pk_dataset_copies")),
    )
    with op.batch_alter_table("dataset_copies", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_dataset_copies_appliance_id"), ["appliance_id"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_dataset_copies_tenant_id"), ["tenant_id"], unique=False
        )

    op.create_table(
        "dataset_version_parts",
        sa.Column("version_id", sa.String(length=36), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_dataset_version_parts_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["dataset_versions.id"],
            name=op.f("fk_dataset_version_parts_version_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("version_id", "sha256", name=op.f("pk_dataset_version_parts")),
    )
    with op.batch_alter_table("dataset_version_parts", schema=None) as batch_op:
        batch_op.create_index(
            "ix_dataset_version_parts_tenant_id_sha256", ["tenant_id", "sha256"], unique=False
        )

    op.create_table(
        "job_artifacts",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("job_id", sa.String(length=36), nullable=False),
        sa.Column("attempt_id", sa.String(length=36), nullable=True),
        sa.Column(
            "path",
            sa.String(length=1024).with_variant(exact, "mysql", "mariadb"),
            nullable=False,
        ),
        sa.Column("path_sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("modified_at", UTCDateTime(), nullable=False),
        sa.Column("uploaded_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name=op.f("fk_job_artifacts_attempt_id"),
            ondelete="SET NULL",
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_artifacts_job_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_job_artifacts_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job_artifacts")),
        sa.UniqueConstraint(
            "job_id", "path_sha256", name=op.f("uq_job_artifacts_job_id_path_sha256")
        ),
    )
    with op.batch_alter_table("job_artifacts", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_job_artifacts_attempt_id"), ["attempt_id"], unique=False
        )
        batch_op.create_index(
            "ix_job_artifacts_tenant_id_uploaded_at", ["tenant_id", "uploaded_at"], unique=False
        )

    op.create_table(
        "job_artifact_parts",
        sa.Column("artifact_id", sa.String(length=36), nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.ForeignKeyConstraint(
            ["artifact_id"],
            ["job_artifacts.id"],
            name=op.f("fk_job_artifact_parts_artifact_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_job_artifact_parts_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("artifact_id", "position", name=op.f("pk_job_artifact_parts")),
    )
    with op.batch_alter_table("job_artifact_parts", schema=None) as batch_op:
        batch_op.create_index(
            "ix_job_artifact_parts_tenant_id_sha256", ["tenant_id", "sha256"], unique=False
        )

    op.add_column("tenant_quotas", sa.Column("max_data_bytes", sa.BigInteger(), nullable=True))
    op.create_table(
        "job_result_reports",
        sa.Column("attempt_id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("pending_files", sa.BigInteger(), nullable=False),
        sa.Column("pending_bytes", sa.BigInteger(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("reported_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["attempts.id"],
            name=op.f("fk_job_result_reports_attempt_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_job_result_reports_tenant_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("attempt_id", name=op.f("pk_job_result_reports")),
    )
    with op.batch_alter_table("job_result_reports", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_job_result_reports_tenant_id"), ["tenant_id"], unique=False
        )

    op.add_column("attempts", sa.Column("staging", sa.JSON(), nullable=True))
    for name in _SETTINGS:
        op.add_column(
            "tenant_queue_settings",
            sa.Column(name, sa.Boolean(), nullable=False, server_default=sa.text("0")),
        )


def downgrade() -> None:
    """Remove them."""
    for name in reversed(_SETTINGS):
        op.drop_column("tenant_queue_settings", name)
    op.drop_column("attempts", "staging")
    op.drop_column("tenant_quotas", "max_data_bytes")
    op.drop_table("job_result_reports")
    op.drop_table("job_artifact_parts")
    op.drop_table("job_artifacts")
    op.drop_table("dataset_version_parts")
    op.drop_table("dataset_copies")
    op.drop_table("dataset_prefetches")
    op.drop_table("dataset_versions")
    op.drop_table("tenant_data_settings")
    op.drop_table("datasets")
    op.drop_table("appliance_caches")
    op.drop_table("gang_networks")
    op.drop_table("data_parts")
    op.drop_table("data_connections")
