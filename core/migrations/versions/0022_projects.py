"""Projects with members and quotas, the projects of jobs and usage, and why jobs were preempted.

Revision ID: 0022_projects
Revises: 0021_log_forwards
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0022_projects"
down_revision = "0021_log_forwards"
branch_labels = None
depends_on = None


def _reference(table: str, column: str, target: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_{column}")
    return sa.ForeignKeyConstraint([column], [f"{target}.id"], name=name, ondelete="CASCADE")


def upgrade() -> None:
    """Create the tables and add the columns."""
    op.create_table(
        "projects",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("parent_id", sa.String(length=36), nullable=True),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("description", sa.String(length=500), nullable=False),
        sa.Column("shares", sa.Integer(), nullable=False),
        sa.Column("budget_label", sa.String(length=100), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.Column("archived_at", UTCDateTime(), nullable=True),
        _reference("projects", "parent_id", "projects"),
        _reference("projects", "tenant_id", "tenants"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.UniqueConstraint("tenant_id", "name", name=op.f("uq_projects_tenant_id_name")),
    )
    op.create_index("ix_projects_parent_id", "projects", ["parent_id"])
    op.create_table(
        "project_members",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("project_id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("shares", sa.Integer(), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        _reference("project_members", "project_id", "projects"),
        _reference("project_members", "tenant_id", "tenants"),
        _reference("project_members", "user_id", "users"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_project_members")),
        sa.UniqueConstraint(
            "project_id", "user_id", name=op.f("uq_project_members_project_id_user_id")
        ),
    )
    op.create_index("ix_project_members_tenant_id", "project_members", ["tenant_id"])
    op.create_index("ix_project_members_user_id", "project_members", ["user_id"])
    op.create_table(
        "project_quotas",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("project_id", sa.String(length=36), nullable=False),
        sa.Column("gpu_model", sa.String(length=100), nullable=False),
        sa.Column("resource", sa.String(length=32), nullable=False),
        sa.Column("guaranteed", sa.BigInteger(), nullable=False),
        sa.Column("maximum", sa.BigInteger(), nullable=True),
        sa.Column("lending_limit", sa.BigInteger(), nullable=True),
        sa.Column("borrowing_limit", sa.BigInteger(), nullable=True),
        _reference("project_quotas", "project_id", "projects"),
        _reference("project_quotas", "tenant_id", "tenants"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_project_quotas")),
        sa.UniqueConstraint(
            *("project_id", "gpu_model", "resource"),
            name=op.f("uq_project_quotas_project_id_gpu_model_resource"),
        ),
    )
    op.create_index("ix_project_quotas_tenant_id", "project_quotas", ["tenant_id"])
    op.add_column("jobs", sa.Column("project_id", sa.String(length=36), nullable=True))
    op.create_index("ix_jobs_project_id_id", "jobs", ["project_id", "id"])
    op.add_column("usage_entries", sa.Column("project_id", sa.String(length=36), nullable=True))
    op.add_column("attempts", sa.Column("preemption", sa.JSON(), nullable=True))
    is_notice_due: sa.Column[bool] = sa.Column(
        "is_notice_due", sa.Boolean(), server_default=sa.false(), nullable=False
    )
    op.add_column("attempts", is_notice_due)
    op.create_index("ix_attempts_is_notice_due", "attempts", ["is_notice_due"])


def downgrade() -> None:
    """Remove the columns and the tables."""
    op.drop_index("ix_attempts_is_notice_due", "attempts")
    op.drop_column("attempts", "is_notice_due")
    op.drop_column("attempts", "preemption")
    op.drop_column("usage_entries", "project_id")
    op.drop_index("ix_jobs_project_id_id", "jobs")
    op.drop_column("jobs", "project_id")
    op.drop_table("project_quotas")
    op.drop_table("project_members")
    op.drop_table("projects")
