"""Second conditions, comparands and matchers of rules.

Revision ID: 0007_rule_conditions
Revises: 0006_late_samples
"""

import sqlalchemy as sa
from alembic import op

revision = "0007_rule_conditions"
down_revision = "0006_late_samples"
branch_labels = None
depends_on = None

_TEXTS = ("compared_with", "and_condition")


def upgrade() -> None:
    """Add the columns; rules so far have none of it."""
    # MySQL has no defaults of such columns.
    columns = [sa.Column("matchers", sa.JSON(), nullable=True)]
    columns += [sa.Column(name, sa.Text(), nullable=True) for name in _TEXTS]
    for column in columns:
        op.add_column("rules", column)
    op.execute("UPDATE rules SET matchers = '[]', compared_with = '', and_condition = ''")
    with op.batch_alter_table("rules") as rules:
        for column in columns:
            rules.alter_column(column.name, existing_type=column.type, nullable=False)


def downgrade() -> None:
    """Remove the columns, and the rules that mean something else without them."""
    op.execute(
        "DELETE FROM rules WHERE compared_with <> '' OR and_condition <> '' "
        "OR comparison NOT IN ('>', '<')"
    )
    rules = sa.table("rules", sa.column("id"), sa.column("matchers", sa.JSON()))
    connection = op.get_bind()
    matched = [row.id for row in connection.execute(sa.select(rules)) if row.matchers]
    connection.execute(sa.delete(rules).where(rules.c.id.in_(matched)))
    for name in ("matchers", *_TEXTS):
        op.drop_column("rules", name)
