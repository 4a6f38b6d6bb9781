"""The periodic tasks of budgets."""

import logging
from collections.abc import Sequence
from decimal import Decimal

from core.db import transaction
from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.settings import ServerSettings
from jobqueue.holds.service import STOP_BATCH, stop_held
from marketplace.budgets.credit import report_used_up, update_credit_holds
from marketplace.budgets.evaluation import evaluate_budgets, tenants_with_budgets
from marketplace.budgets.notices import warn
from marketplace.budgets.service_costs import capped_services, hold_services
from marketplace.tenant_errors import TenantErrors

log = logging.getLogger(__name__)


class BudgetTasks:
    """Compares budgets, and prepaid credit, with costs."""

    def __init__(self, settings: ServerSettings, context: SchedulerContext) -> None:
        self._settings = settings
        self._context = context

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        return [
            PeriodicTask(self.watch_budgets, 60),
            PeriodicTask(self.watch_service_costs, 60),
        ]

    def watch_service_costs(self) -> None:
        """Hold services that scale and reached their highest cost; release the others.

        Raises:
            TenantsFailedError: those of some tenants can't be compared; the others are.
        """
        errors, context = TenantErrors("compare the costs of services"), self._context
        with transaction(context.sessions) as session:
            capped = capped_services(session)
        for tenant_id, services in capped.items():
            if context.is_stopping():
                return
            with errors.of(tenant_id), transaction(context.sessions) as session:
                hold_services(
                    session,
                    tenant_id,
                    services,
                    currency=self._settings.billing_currency,
                    now=context.clock(),
                )
        errors.raise_if_any()

    def watch_budgets(self) -> None:
        """Warn of budgets, hold jobs of those that are spent, and stop what runs after a grace.

        Raises:
            TenantsFailedError: those of some tenants can't be compared; the others are.
        """
        errors = TenantErrors("compare budgets")
        with transaction(self._context.sessions) as session:
            tenant_ids = tenants_with_budgets(session)
        if self._settings.marketplace:
            for customer_id in self._update_credit(errors):
                with errors.of(customer_id):
                    self._stop(customer_id)
        for tenant_id in tenant_ids:
            if self._context.is_stopping():
                return
            with errors.of(tenant_id):
                for source_id in self._evaluate(tenant_id):
                    self._stop(source_id)
        errors.raise_if_any()

    def _evaluate(self, tenant_id: str) -> Sequence[str]:
        """Return the budgets whose running jobs stop now."""
        settings, now = self._settings, self._context.clock()
        with transaction(self._context.sessions) as session:
            evaluated = evaluate_budgets(session, tenant_id, now=now)
            for budget in evaluated.warnings:
                warn(
                    session,
                    budget,
                    currency=settings.billing_currency,
                    public_url=settings.resolved_public_url,
                    has_email=bool(settings.smtp_url),
                    now=now,
                )
            return evaluated.stopping

    def _update_credit(self, errors: TenantErrors) -> Sequence[str]:
        """Return the tenants without prepaid credit whose rented jobs stop now."""
        settings, now = self._settings, self._context.clock()
        with transaction(self._context.sessions) as session:
            tax = Decimal(str(settings.tax_percent))
            holds = update_credit_holds(session, tax_percent=tax, errors=errors, now=now)
            for hold in holds.new if settings.smtp_url else ():
                url = settings.resolved_public_url
                report_used_up(session, hold.tenant_id, public_url=url, now=now)
            return holds.stopping

    def _stop(self, source_id: str) -> None:
        stopped = STOP_BATCH
        while stopped >= STOP_BATCH and not self._context.is_stopping():
            with transaction(self._context.sessions) as session:
                stopped = stop_held(session, source_id, now=self._context.clock())
            if stopped:
                log.info("stopped %d attempts that %s holds", stopped, source_id)
