"""The periodic tasks of the marketplace."""

import logging
from collections.abc import Sequence

from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.settings import ServerSettings
from marketplace.charges.service import accrue
from marketplace.invoices.closing import close_months
from marketplace.invoices.documents import Issuing

log = logging.getLogger(__name__)


class BillingTasks:
    """Charges the usage ledger, and issues invoices and statements."""

    def __init__(self, settings: ServerSettings, context: SchedulerContext) -> None:
        self._context = context
        self._issuing = Issuing.of(settings)

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        return [
            PeriodicTask(self.charge_ledger, 60),
            PeriodicTask(self.close_months, 3600),
        ]

    def charge_ledger(self) -> None:
        """Add the billing lines of ledger rows that have none."""
        context, added = self._context, 1
        while added and not context.is_stopping():
            added = accrue(context.sessions, now=context.clock(), is_stopping=context.is_stopping)
            if added:
                log.info("added %d billing lines", added)

    def close_months(self) -> None:
        """Issue the invoices and statements of months that have ended."""
        context = self._context
        closed = close_months(
            context.sessions, self._issuing, now=context.clock(), is_stopping=context.is_stopping
        )
        for month_at in closed:
            log.info("issued the invoices and statements of %s", f"{month_at:%Y-%m}")
