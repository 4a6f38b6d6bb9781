"""Customers that pay in advance rent as long as their credit lasts."""

from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

import marketplace.budgets.credit
import marketplace.invoices.closing
from alerting.notification.models import Notification
from core.db import SessionFactory
from jobqueue.holds.models import JobHold
from jobqueue.holds.service import rental_hold
from jobqueue.models import Attempt
from jobqueue.states import Reason
from marketplace.budgets.credit import credit_left, update_credit_holds
from marketplace.budgets.tasks import BudgetTasks
from marketplace.charges.prepaid import add_credit
from marketplace.invoices.closing import close_months
from marketplace.invoices.documents import Issuing, issue
from marketplace.invoices.models import BillingDocument, DocumentKind
from marketplace.models import Account
from marketplace.tenant_errors import TenantErrors
from tests.cast import NOON, Cast, FrozenClock, scope_of
from tests.unit.jobqueue.builders import start, submit
from tests.unit.marketplace import ledger
from tests.unit.marketplace.conftest import MakeTasks
from tests.unit.marketplace.cost_builders import add_contract, add_line
from tests.unit.marketplace.months import DUE, ISSUING, record_until

HOUR = timedelta(hours=1)


@pytest.fixture
def balance(monkeypatch: pytest.MonkeyPatch) -> dict[str, Decimal]:
    """What tenants have paid in."""
    balances: dict[str, Decimal] = {}

    def balance_of(_session: Session, tenant_id: str) -> Decimal:
        return balances.get(tenant_id, Decimal(0))

    monkeypatch.setattr(marketplace.budgets.credit, "balance_of", balance_of)
    return balances


@pytest.fixture
def tasks(make_tasks: MakeTasks, tmp_path: Path) -> BudgetTasks:
    return make_tasks(marketplace=True, smtp_url="smtp://mail.example", data_dir=tmp_path)


def test_what_is_left_is_the_balance_less_what_is_rented_with_taxes(
    session: Session, cast: Cast, balance: dict[str, Decimal]
) -> None:
    attempt = start(session, cast, gpus=1)
    contract = add_contract(session, cast.globex, cast.acme, "3")
    attempt.contract_id = contract.id
    add_line(session, cast.acme, "10", contract_id=contract.id, provider_id=cast.globex.id)
    add_line(session, cast.acme, "50")  # own appliances
    balance[cast.acme.id] = Decimal(100)
    left = credit_left(session, cast.acme.id, tax_percent=Decimal(20), now=NOON + HOUR)
    assert left == Decimal("84.40")  # 100 - (10 + 3) * 1.2


def test_without_credit_rented_jobs_are_held_and_stop_an_hour_later(
    sessions: SessionFactory,
    cast: Cast,
    clock: FrozenClock,
    tasks: BudgetTasks,
    balance: dict[str, Decimal],
) -> None:
    with sessions.begin() as session:
        session.add(Account(tenant_id=cast.acme.id, is_prepaid=True, updated_at=NOON))
        rented = start(session, cast, gpus=1)
        rented.contract_id = add_contract(session, cast.globex, cast.acme, "3").id
        attempt_id = rented.id
    balance[cast.acme.id] = Decimal(1)
    tasks.watch_budgets()
    with sessions() as session:
        assert rental_hold(session, cast.acme.id) == ""
    clock.advance(1800)
    tasks.watch_budgets()
    with sessions.begin() as session:
        assert rental_hold(session, cast.acme.id).startswith("The prepaid credit is used up")
        subjects = [row.payload["subject"] for row in session.scalars(select(Notification))]
        assert subjects == ["Acme: the prepaid credit is used up"]
        submit(session, cast.bob, gpus=1)  # for own appliances
    clock.advance(3599)
    tasks.watch_budgets()
    with sessions() as session:
        assert session.get_one(Attempt, attempt_id).stop_reason is None
    clock.advance(1)
    tasks.watch_budgets()
    with sessions() as session:
        assert session.get_one(Attempt, attempt_id).stop_reason is Reason.BUDGET_SPENT

    balance[cast.acme.id] = Decimal(100)
    tasks.watch_budgets()
    with sessions() as session:
        assert rental_hold(session, cast.acme.id) == ""


@pytest.mark.usefixtures("balance")
def test_a_customer_that_pays_later_is_not_held(session: Session, cast: Cast) -> None:
    account = Account(tenant_id=cast.acme.id, is_prepaid=True, updated_at=NOON)
    session.add_all([account, Account(tenant_id=cast.globex.id, updated_at=NOON)])
    session.flush()
    errors = TenantErrors("test")
    update_credit_holds(session, tax_percent=Decimal(0), errors=errors, now=NOON)
    assert session.scalars(select(JobHold.tenant_id)).all() == [cast.acme.id]
    account.is_prepaid = False
    session.flush()
    update_credit_holds(session, tax_percent=Decimal(0), errors=errors, now=NOON)
    assert session.scalars(select(JobHold)).all() == []


def test_what_an_invoice_is_for_counts_once_while_its_month_is_issued(
    sessions: SessionFactory, session: Session, cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = ledger.add_contract(session, cast, ledger.terms("2"))
    add_credit(
        session, scope_of(cast.olivia), cast.acme.id, Decimal(100), reference="P-1", now=NOON
    )
    ledger.add_use(session, cast.acme.id, ledger.MARCH, 30 * ledger.GPU_HOUR, contract=contract)
    record_until(session, ledger.APRIL)
    session.commit()
    ledger.accrue_all(sessions)
    left = Decimal(25)  # 100 - 60 with 25 % tax

    def killed(
        session: Session,
        issuing: Issuing,
        kind: DocumentKind,
        tenant_id: str,
        month_at: datetime,
        *,
        now: datetime,
    ) -> BillingDocument | None:
        if kind is DocumentKind.STATEMENT:
            raise KeyboardInterrupt
        return issue(session, issuing, kind, tenant_id, month_at, now=now)

    with monkeypatch.context() as patched:
        patched.setattr(marketplace.invoices.closing, "issue", killed)
        with pytest.raises(KeyboardInterrupt):
            close_months(sessions, ISSUING, now=DUE)
    with sessions() as read:
        assert credit_left(read, cast.acme.id, tax_percent=Decimal(25), now=DUE) == left
    assert close_months(sessions, ISSUING, now=DUE) == [ledger.MARCH]
    # What the ledger corrects of a closed month is in the next invoice, and counts now.
    late_at = ledger.MARCH + HOUR
    ledger.add_use(session, cast.acme.id, late_at, 4 * ledger.GPU_HOUR, contract=contract)
    session.commit()
    ledger.accrue_all(sessions)
    with sessions() as read:
        assert credit_left(read, cast.acme.id, tax_percent=Decimal(25), now=DUE) == left - 10
