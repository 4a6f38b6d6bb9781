"""Rules in PromQL, and their labels.

Revision ID: 0019_promql_rules
Revises: 0018_write_tokens
"""

import sqlalchemy as sa
from alembic import op

revision = "0019_promql_rules"
down_revision = "0018_write_tokens"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; rules that exist are not in PromQL."""
    with op.batch_alter_table("rules") as rules:
        rules.add_column(sa.Column("promql", sa.Text(), nullable=True))
        rules.add_column(sa.Column("labels", sa.JSON(), nullable=True))
    table = sa.table("rules", sa.column("promql", sa.Text()), sa.column("labels", sa.JSON()))
    op.execute(sa.update(table).values(promql="", labels={}))
    with op.batch_alter_table("rules") as rules:
        rules.alter_column("promql", existing_type=sa.Text(), nullable=False)
        rules.alter_column("labels", existing_type=sa.JSON(), nullable=False)


def downgrade() -> None:
    """Remove the columns, and the rules that need them."""
    table = sa.table("rules", sa.column("promql", sa.Text()))
    op.execute(sa.delete(table).where(table.c.promql != ""))
    with op.batch_alter_table("rules") as rules:
        rules.drop_column("labels")
        rules.drop_column("promql")
