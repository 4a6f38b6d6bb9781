"""A user belongs to tenants by memberships, and to the platform as its operator.

Revision ID: 0003
Revises: 0002
"""

import sqlalchemy as sa
from alembic import op

from core.db import UTCDateTime

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "memberships",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("user_id", sa.String(length=36), nullable=False),
        sa.Column("tenant_id", sa.String(length=36), nullable=False),
        sa.Column("role", sa.String(length=32), nullable=False),
        sa.Column("is_active", sa.Boolean(), nullable=False),
        sa.Column("created_at", UTCDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_memberships_tenant_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_memberships_user_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_memberships")),
        sa.UniqueConstraint("user_id", "tenant_id", name=op.f("uq_memberships_user_id_tenant_id")),
    )
    with op.batch_alter_table("memberships", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_memberships_tenant_id"), ["tenant_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_memberships_user_id"), ["user_id"], unique=False)
    with op.batch_alter_table("users") as batch_op:
        batch_op.add_column(
            sa.Column("is_operator", sa.Boolean(), nullable=False, server_default=sa.false())
        )
        batch_op.add_column(sa.Column("totp_secret", sa.String(length=500), nullable=True))
        batch_op.add_column(sa.Column("totp_confirmed_at", UTCDateTime(), nullable=True))
        batch_op.add_column(
            sa.Column(
                "totp_last_step",
                sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
                nullable=True,
            )
        )
        batch_op.alter_column("password_hash", existing_type=sa.String(200), nullable=True)
    # A user had one tenant at most, so the user's id can be the membership's.
    op.execute(
        "INSERT INTO memberships (id, user_id, tenant_id, role, is_active, created_at) "
        "SELECT id, id, tenant_id, role, 1, created_at FROM users WHERE tenant_id IS NOT NULL"
    )
    op.execute("UPDATE users SET is_operator = 1 WHERE role = 'operator'")
    with op.batch_alter_table("users") as batch_op:
        batch_op.alter_column("is_operator", existing_type=sa.Boolean(), server_default=None)
        batch_op.drop_constraint("fk_users_tenant_id", type_="foreignkey")
        batch_op.drop_index("ix_users_tenant_id")
        batch_op.drop_column("tenant_id")
        batch_op.drop_column("role")


def downgrade() -> None:
    with op.batch_alter_table("users") as batch_op:
        batch_op.add_column(
            sa.Column("role", sa.String(length=32), nullable=False, server_default="viewer")
        )
        batch_op.add_column(sa.Column("tenant_id", sa.String(length=36), nullable=True))
    op.execute(
        "UPDATE users SET tenant_id = (SELECT MIN(memberships.tenant_id) FROM memberships "
        "WHERE memberships.user_id = users.id)"
    )
    op.execute(
        "UPDATE users SET role = (SELECT memberships.role FROM memberships "
        "WHERE memberships.user_id = users.id AND memberships.tenant_id = users.tenant_id) "
        "WHERE tenant_id IS NOT NULL"
    )
    op.execute("UPDATE users SET role = 'operator', tenant_id = NULL WHERE is_operator = 1")
    # Nobody can sign in with an empty hash.
    op.execute("UPDATE users SET password_hash = '' WHERE password_hash IS NULL")
    with op.batch_alter_table("users") as batch_op:
        batch_op.alter_column("role", existing_type=sa.String(32), server_default=None)
        batch_op.alter_column("password_hash", existing_type=sa.String(200), nullable=False)
        batch_op.create_index("ix_users_tenant_id", ["tenant_id"], unique=False)
        batch_op.create_foreign_key(
            "fk_users_tenant_id", "tenants", ["tenant_id"], ["id"], ondelete="CASCADE"
        )
        batch_op.drop_column("totp_last_step")
        batch_op.drop_column("totp_confirmed_at")
        batch_op.drop_column("totp_secret")
        batch_op.drop_column("is_operator")
    op.drop_table("memberships")
