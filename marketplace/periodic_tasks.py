"""The periodic tasks of the marketplace and of billing."""

import logging
from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import select, update

from core.db import transaction
from core.errors import OverloadedError, UnavailableError
from core.periodic_tasks import PeriodicTask, SchedulerContext
from core.settings import ServerSettings
from marketplace.budgets.tasks import BudgetTasks
from marketplace.charges.service import accrue
from marketplace.consequences.standing import evaluate, forget_events, providers_to_judge
from marketplace.contracts.grants import refresh_contract, usable_contracts
from marketplace.invoices.closing import close_months
from marketplace.invoices.documents import Issuing
from marketplace.models import Contract
from marketplace.offers.coverage import providers, refresh_provider
from marketplace.reputation.refresh import refresh_reputations
from marketplace.service_levels.credits import settle
from marketplace.service_levels.detection import detect
from marketplace.support.tasks import SupportTasks
from marketplace.tenant_errors import TenantErrors
from marketplace.verification.tasks import VerificationTasks
from tenants.models.rentals import Grant
from timeseries.store import Store

log = logging.getLogger(__name__)

# Of contracts, and of providers, in one transaction, which is short.
BATCH = 50
PROVIDERS_BATCH = 20


def market_tasks(
    settings: ServerSettings, context: SchedulerContext, store: Store
) -> Sequence[PeriodicTask]:
    """Return all tasks of the marketplace; billing, budgets and support are always there."""
    measured: Sequence[PeriodicTask] = ()
    if settings.marketplace:
        measured = [
            *VerificationTasks(settings, context, store).table(),
            *ProviderTasks(settings, context, store).table(),
        ]
    return [
        *MarketTasks(settings, context).table(),
        *measured,
        *BillingTasks(settings, context).table(),
        *BudgetTasks(settings, context).table(),
        *SupportTasks(settings, context).table(),
    ]


class MarketTasks:
    """Refreshes what is on offer and what contracts grant, where the marketplace is on."""

    def __init__(self, settings: ServerSettings, context: SchedulerContext) -> None:
        self._settings = settings
        self._context = context
        self._mail_url = settings.resolved_public_url if settings.smtp_url else ""

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        if not self._settings.marketplace:
            return [PeriodicTask(self.close_grants, 3600, runs_at_start=True)]
        return [
            PeriodicTask(self.refresh_offers, 60, runs_at_start=True),
            PeriodicTask(self.refresh_grants, 60, runs_at_start=True),
        ]

    def close_grants(self) -> None:
        """Let no more jobs start on rented appliances, after the marketplace was turned off."""
        is_open = Grant.is_open.is_(True)
        with transaction(self._context.sessions) as session:
            session.execute(update(Grant).where(is_open).values(is_open=False))

    def refresh_offers(self) -> None:
        """Write which appliances are on offer, and what is free there, provider by provider."""
        context, errors = self._context, TenantErrors("refresh the offers")
        with transaction(context.sessions) as session:
            idents = providers(session)
        for ident in idents:
            if context.is_stopping():
                return
            with errors.of(ident), transaction(context.sessions) as session:
                refresh_provider(
                    session,
                    ident,
                    now=context.clock(),
                    requires_verification=self._settings.marketplace_requires_verification,
                )
        errors.raise_if_any()

    def refresh_grants(self) -> None:
        """End contracts whose end has come, and write what the others grant now.

        A batch with a contract that fails is done contract by contract; no job starts under that.
        """
        context, errors = self._context, TenantErrors("refresh the contracts")
        with transaction(context.sessions) as session:
            idents = usable_contracts(session)
        for start in range(0, len(idents), BATCH):
            if context.is_stopping():
                return
            batch = idents[start : start + BATCH]
            try:
                self._refresh(batch)
            except (UnavailableError, OverloadedError):
                raise
            except Exception as error:  # noqa: BLE001 - logged with its contract below
                log.warning("contracts are refreshed one by one: %s", error)
                self._refresh_one_by_one(batch, errors)
        errors.raise_if_any()

    def _refresh_one_by_one(self, contract_ids: Sequence[str], errors: TenantErrors) -> None:
        sides = select(Contract.id, Contract.customer_id, Contract.provider_id)
        with transaction(self._context.sessions) as session:
            rows = session.execute(sides.where(Contract.id.in_(contract_ids))).all()
        for ident, *tenant_ids in rows:
            is_refreshed = False
            with errors.of(*tenant_ids):
                self._refresh([ident])
                is_refreshed = True
            if not is_refreshed:
                with transaction(self._context.sessions) as session:
                    close = update(Grant).where(Grant.contract_id == ident)
                    session.execute(close.values(is_open=False))

    def _refresh(self, contract_ids: Sequence[str]) -> None:
        context = self._context
        with transaction(context.sessions) as session:
            for ident in contract_ids:
                refresh_contract(session, ident, now=context.clock(), mail_url=self._mail_url)


class ProviderTasks:
    """Measures what providers keep of their promises, and what follows for them."""

    def __init__(self, settings: ServerSettings, context: SchedulerContext, store: Store) -> None:
        self._half_life = timedelta(days=settings.reputation_half_life_days)
        self._mail_url = settings.resolved_public_url if settings.smtp_url else ""
        self._context = context
        self._store = store

    def table(self) -> Sequence[PeriodicTask]:
        """Return the tasks."""
        return [
            PeriodicTask(self.detect_breaches, 300),
            PeriodicTask(self.settle_breaches, 3600),
            PeriodicTask(self.refresh_reputations, 3600, runs_at_start=True),
            PeriodicTask(self.judge_providers, 300),
            PeriodicTask(self.forget_standing_events, 86_400),
        ]

    def detect_breaches(self) -> None:
        """Record the promises that were not kept."""
        count = detect(self._context.sessions, self._store, now=self._context.clock())
        if count:
            log.info("recorded %d breaches of service levels", count)

    def settle_breaches(self) -> None:
        """Credit what was not kept, once its costs are final."""
        settle(self._context.sessions, now=self._context.clock())

    def refresh_reputations(self) -> None:
        """Bring evidence, reputations and their history up to date."""
        context = self._context
        count = refresh_reputations(
            context.sessions,
            self._store,
            now=context.clock(),
            half_life=self._half_life,
            is_stopping=context.is_stopping,
        )
        log.debug("brought the reputation of %d providers up to date", count)

    def judge_providers(self) -> None:
        """Take the steps that follow for providers now, in short transactions."""
        context = self._context
        with transaction(context.sessions) as session:
            idents = providers_to_judge(session)
        for start in range(0, len(idents), PROVIDERS_BATCH):
            if context.is_stopping():
                return
            with transaction(context.sessions) as session:
                for ident in idents[start : start + PROVIDERS_BATCH]:
                    if evaluate(session, ident, now=context.clock(), mail_url=self._mail_url):
                        log.info("the standing of provider %s changed", ident)

    def forget_standing_events(self) -> None:
        """Delete what nobody looks at any more."""
        with transaction(self._context.sessions) as session:
            forget_events(session, now=self._context.clock())


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
        close_months(
            context.sessions, self._issuing, now=context.clock(), is_stopping=context.is_stopping
        )
