"""The table of budgets."""

from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import ClassVar

from sqlalchemy import String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db import Base, id_column
from core.ids import ID_LENGTH
from core.money import Amount
from tenants.models.audit import Audited
from tenants.models.columns import enum_column, tenant_column


class BudgetTarget(StrEnum):
    """Whose costs a budget counts; of a project, with those below it."""

    TENANT = "tenant"
    PROJECT = "project"
    USER = "user"


class BudgetAction(StrEnum):
    """What happens, besides the warning, when a budget is spent."""

    NOTIFY = "notify"
    STOP_NEW_JOBS = "stop_new_jobs"
    STOP_JOBS = "stop_jobs"


class Budget(Base):
    """What a tenant, a project or a user may spend in a calendar month in UTC, before taxes.

    Attributes:
        target_id: of the project or user; "" for the tenant. They may be gone.
        target_name: of the project or tenant, or the user's email address.
        amount: in the currency of the portal.
        grace_seconds: from 100 % to the stop of running jobs, with `stop_jobs`.
        notify: `email` for the admins, the billing users and the user of the budget; others are
            names of receivers.
        period_at: the month of what follows; None if it was never evaluated.
        level_percent: the highest warning of the month: 0, 50, 80 or 100.
        spent: in the month so far, when it was last evaluated.
        forecast: what the month is expected to come to.
        reached_at: when 100 % was first seen.
    """

    __tablename__ = "budgets"
    __table_args__ = (UniqueConstraint("tenant_id", "target", "target_id"),)
    audited: ClassVar = Audited(
        kind="budget",
        name="target_name",
        fields=("target", "target_id", "amount", "action", "grace_seconds", "notify"),
    )

    id: Mapped[str] = id_column()
    tenant_id: Mapped[str] = tenant_column()
    target: Mapped[BudgetTarget] = mapped_column(enum_column(BudgetTarget))
    target_id: Mapped[str] = mapped_column(String(ID_LENGTH), default="")
    target_name: Mapped[str] = mapped_column(String(254))
    amount: Mapped[Decimal] = mapped_column(Amount)
    action: Mapped[BudgetAction] = mapped_column(enum_column(BudgetAction))
    grace_seconds: Mapped[int] = mapped_column(default=0)
    notify: Mapped[list[str]] = mapped_column(default=list)
    created_at: Mapped[datetime]
    period_at: Mapped[datetime | None]
    level_percent: Mapped[int] = mapped_column(default=0)
    spent: Mapped[Decimal] = mapped_column(Amount, default=Decimal(0))
    forecast: Mapped[Decimal] = mapped_column(Amount, default=Decimal(0))
    reached_at: Mapped[datetime | None]
    evaluated_at: Mapped[datetime | None]

    @property
    def percent(self) -> float:
        """How much of it is spent, as a percentage, as of the last evaluation."""
        return float(100 * self.spent / self.amount) if self.amount else 100.0
