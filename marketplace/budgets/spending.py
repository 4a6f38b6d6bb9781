"""What a tenant's projects and users spend in a month, and what the month will come to.

The forecast adds to what is spent the average hour of the last seven days for each hour that is
left: simple enough to be checked by hand, and no worse for a fleet that is used evenly.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from core.money import ZERO, exact
from jobqueue.usage.measuring import Period
from marketplace import months
from marketplace.charges.models import BillingLine, LineKind
from marketplace.costs.unbilled import unbilled_costs

WINDOW = timedelta(days=7)
# The average of a tenant's first day is that of a whole one.
SHORTEST_WINDOW = timedelta(days=1)
_RUNNING = (LineKind.USAGE, LineKind.MINIMUM, LineKind.RESERVATION, LineKind.DISCOUNT)


def month_of(at: datetime) -> Period:
    """Return the calendar month in UTC of a time."""
    month_at = months.month_of(at)
    return Period(month_at, months.next_month(month_at))


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent in a month so far, and what it is expected to come to."""

    amount: Decimal
    forecast: Decimal


class Spending:
    """The costs of one tenant in the month of a time, read once for all of its budgets."""

    def __init__(self, session: Session, tenant_id: str, *, now: datetime) -> None:
        self.month = month_of(now)
        recent_at = now - WINDOW
        begin = min(self.month.since, recent_at)
        in_month = BillingLine.at >= self.month.since
        is_recent = (BillingLine.at >= recent_at) & BillingLine.kind.in_(_RUNNING)
        keys = BillingLine.project_id, BillingLine.user_id
        statement = select(
            *keys,
            func.sum(case((in_month, BillingLine.amount))),
            func.sum(case((is_recent, BillingLine.amount))),
        ).where(
            BillingLine.tenant_id == tenant_id,
            BillingLine.at >= begin,
            BillingLine.at < self.month.until,
        )
        self._sums: dict[tuple[str | None, str | None], list[Decimal]] = defaultdict(
            lambda: [ZERO, ZERO]
        )
        for project_id, user_id, month, recent in session.execute(statement.group_by(*keys)):
            self._sums[project_id, user_id] = [month or ZERO, recent or ZERO]
        first_at = session.scalar(
            select(func.min(BillingLine.at)).where(BillingLine.tenant_id == tenant_id)
        )
        # After the lines: what is charged meanwhile must not count twice.
        for cost in unbilled_costs(session, tenant_id, Period(begin, now), now=now):
            first_at = min(first_at or cost.hour_at, cost.hour_at)
            sums = self._sums[cost.project_id, cost.user_id]
            sums[0] += cost.amount if cost.hour_at >= self.month.since else ZERO
            sums[1] += cost.amount if cost.hour_at >= recent_at else ZERO
        window = max(min(WINDOW, now - (first_at or now)), SHORTEST_WINDOW)
        self._remaining = Decimal((self.month.until - now) / window)

    def of(
        self, *, project_ids: Collection[str] | None = None, user_id: str | None = None
    ) -> Spent:
        """Return what was spent by projects, by a user, or by all."""
        month = recent = ZERO
        for (project, user), sums in self._sums.items():
            if project_ids is not None and project not in project_ids:
                continue
            if user_id is not None and user != user_id:
                continue
            month, recent = month + sums[0], recent + sums[1]
        return Spent(month, exact(month + recent * self._remaining))
