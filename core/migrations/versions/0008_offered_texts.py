"""What the rule pack offered to each tenant, so that unchanged rules follow it.

Revision ID: 0008_offered_texts
Revises: 0007_rule_conditions
"""

import sqlalchemy as sa
from alembic import op

revision = "0008_offered_texts"
down_revision = "0007_rule_conditions"
branch_labels = None
depends_on = None

_GPU = "GPU {{ labels.gpu }} of {{ labels.appliance }}"
# Of the rules that the pack changes with this revision; the others are as they were offered.
_OFFERED = {
    "disk-full-soon": (
        "forecast(disk.used_percent) ahead 1d over 6h by appliance, mount > 100 % for 30m every 5m",
        (
            "At the rate of the last 6 hours, {{ labels.mount }} on {{ labels.appliance }} is "
            "full in a day."
        ),
    ),
    "gpu-hot": (
        (
            "avg(gpu.temperature_celsius) over 5m by appliance, gpu > 85 °C reset 80 °C, "
            "critical > 92 °C reset 88 °C for 2m every 1m"
        ),
        f"{_GPU} is at {{{{ value_text }}}}.",
    ),
    "gpu-throttled-by-power": (
        "avg(gpu.throttled_by_power) over 30m by appliance, gpu > 0.95 for 30m every 1m",
        f"{_GPU} has been at its power limit for 30 minutes.",
    ),
    "gpu-unhealthy": (
        "max(gpu_health.state) over 5m by appliance, gpu > 0.5, critical > 1.5 for 5m every 1m",
        (
            "The health checks of {{ labels.appliance }}"
            "{% if labels.gpu %} (GPU {{ labels.gpu }}){% endif %} have findings."
        ),
    ),
    "gpu-idle": (
        "max(gpu.utilization_percent{job=*}) over 1h by appliance, gpu, job < 1 % for 1h every 5m",
        f"A job has had {_GPU} for an hour without using it.",
    ),
    "gpu-memory-full": (
        "max(gpu.memory_used_percent) over 5m by appliance, gpu > 98 % for 15m every 1m",
        (
            "{{ value_text }} of the memory of GPU {{ labels.gpu }} of {{ labels.appliance }} is "
            "allocated."
        ),
    ),
}


def upgrade() -> None:
    """Add the columns, and fill them for rules that change."""
    # MySQL has no default of a text.
    op.add_column("offered_rules", sa.Column("expression", sa.Text(), nullable=True))
    op.add_column(
        "offered_rules",
        sa.Column("annotation", sa.String(length=1000), nullable=False, server_default=""),
    )
    op.execute("UPDATE offered_rules SET expression = ''")
    with op.batch_alter_table("offered_rules") as table:
        table.alter_column("expression", existing_type=sa.Text(), nullable=False)
    columns = ("key", "expression", "annotation")
    offers = sa.table("offered_rules", *map(sa.column, columns))
    for key, (expression, annotation) in _OFFERED.items():
        offered = {"expression": expression, "annotation": annotation}
        op.execute(sa.update(offers).where(offers.c.key == key).values(offered))


def downgrade() -> None:
    """Remove the columns."""
    op.drop_column("offered_rules", "annotation")
    op.drop_column("offered_rules", "expression")
